"""Dotted names of fields: ``models.resnet8.recipes[1]``, ``models."mobilenet-0.25".seed``."""

from __future__ import annotations

import json
import re

FieldPath = tuple[str | int, ...]
"""A place in a tree: mapping keys and list indices, from the root down."""

_BARE = r'[^\s."\[\]=]+'
_NAME = rf'(?P<bare>{_BARE})|(?P<quoted>"(?:[^"\\]|\\.)*")'
_FIRST = re.compile(_NAME)
_NEXT = re.compile(rf"\.(?:{_NAME})|\[(?P<index>\d{{1,9}})\]")


def format_field(path: FieldPath) -> str:
    """The dotted name of a path. A key with dots, blanks or the like is quoted as JSON text."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += "." if text else ""
            text += part if re.fullmatch(_BARE, part) else json.dumps(part, ensure_ascii=False)
    return text


def read_field(text: str) -> tuple[FieldPath, str]:
    """Reads a dotted name at the start of `text`: its path, empty if none is there, and the text after it."""
    path: list[str | int] = []
    position = 0
    while part := (_NEXT if path else _FIRST).match(text, position):
        named = part.groupdict()
        if named.get("index") is not None:
            path.append(int(named["index"]))
        elif named["bare"] is not None:
            path.append(named["bare"])
        else:
            try:
                path.append(json.loads(named["quoted"]))
            except ValueError:  # an escape that JSON does not have
                break
        position = part.end()
    return tuple(path), text[position:]
