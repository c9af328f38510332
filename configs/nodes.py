"""Trees of configuration values that know where they were written, and dotted names of fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import ConfigError, Location

FieldPath = tuple[str | int, ...]
"""A place in a tree: mapping keys and list indices, from the root down."""

Scalar = str | int | float | bool | None
Plain = Scalar | list["Plain"] | dict[str, "Plain"]


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it was written.

    Attributes:
        value: a scalar, or the nodes of a mapping or of a list. Mapping keys are always text.
        location: the position of the key for an entry of a mapping, of the value itself for an item of a list.
        written: the path in the file, or the ``--set`` key, that the value was written at. Merging moves nodes to other
            paths; errors still name the field as the user wrote it.
    """

    value: Scalar | Mapping[str, Node] | Sequence[Node]
    location: Location
    written: FieldPath = ()

    @property
    def field(self) -> str:
        return format_field(self.written)

    @property
    def entries(self) -> Mapping[str, Node]:
        """The entries of a mapping; empty for anything else."""
        return self.value if isinstance(self.value, Mapping) else {}

    @property
    def items(self) -> Sequence[Node]:
        """The items of a list; empty for anything else."""
        return self.value if isinstance(self.value, Sequence) and not isinstance(self.value, str) else ()

    def child(self, part: str | int) -> Node | None:
        if isinstance(part, int):
            return self.items[part] if 0 <= part < len(self.items) else None
        return self.entries.get(part)

    def with_entries(self, entries: Mapping[str, Node]) -> Node:
        return replace(self, value={**self.entries, **entries})

    def without(self, *keys: str) -> Node:
        return replace(self, value={key: node for key, node in self.entries.items() if key not in keys})

    def error(self, problem: str) -> ConfigError:
        return ConfigError(problem, location=self.location, field=self.field or None)


@dataclass(frozen=True, slots=True)
class Locations:
    """Finds where the values of a loaded zoo or recipe were written, in the tree after everything was merged."""

    root: Node

    def find(self, path: FieldPath) -> Location:
        """The place where the value at `path` was written, or the closest enclosing value that exists.

        The path has keys and indices from the root down, such as ``("models", "resnet8", "recipes", 0)``. The result is
        the position of the key for an entry of a mapping, of the value for an item of a list. For a value from the
        command line, `file` is ``--set KEY`` and there is no line or column.
        """
        return nearest(self.root, path)[0].location

    def written_at(self, path: FieldPath) -> Location | None:
        """The place where exactly the value at `path` was written; None if there is none."""
        node, missing = nearest(self.root, path)
        return None if missing else node.location

    def error(self, problem: str, path: FieldPath) -> ConfigError:
        node, missing = nearest(self.root, path)
        return replace(node, written=(*node.written, *missing)).error(problem)


def plain(node: Node) -> Plain:
    if isinstance(node.value, Mapping):
        return {key: plain(entry) for key, entry in node.value.items()}
    if isinstance(node.value, Sequence) and not isinstance(node.value, str):
        return [plain(item) for item in node.value]
    return node.value


def located(value: Plain, place: Node) -> Node:
    """The tree of a plain value, with every node located where `place` is."""
    if isinstance(value, dict):
        return replace(place, value={key: located(entry, place) for key, entry in value.items()})
    if isinstance(value, list):
        return replace(place, value=[located(item, place) for item in value])
    return replace(place, value=value)


def nearest(root: Node, path: FieldPath) -> tuple[Node, FieldPath]:
    """The node at `path`, or its nearest ancestor that exists, and the part of the path that was not found."""
    node = root
    for depth, part in enumerate(path):
        child = node.child(part)
        if child is None:
            return node, path[depth:]
        node = child
    return node, ()


def deep_merge(base: Node, over: Node) -> Node:
    """`over` on top of `base`: mappings merge entry by entry, lists and scalars of `over` replace those of `base`."""
    if not (isinstance(base.value, Mapping) and isinstance(over.value, Mapping)):
        return over
    merged = dict(base.value)
    for key, node in over.value.items():
        merged[key] = deep_merge(merged[key], node) if key in merged else node
    return replace(over, value=merged)


def map_scalars(node: Node, change: Callable[[FieldPath, Scalar], Scalar], at: FieldPath = ()) -> Node:
    """The tree with every scalar replaced by ``change(path, scalar)``; `at` is the path of `node` itself."""
    if isinstance(node.value, Mapping):
        return replace(node, value={key: map_scalars(entry, change, (*at, key)) for key, entry in node.value.items()})
    if isinstance(node.value, Sequence) and not isinstance(node.value, str):
        return replace(node, value=[map_scalars(item, change, (*at, i)) for i, item in enumerate(node.value)])
    return replace(node, value=change(at, node.value))


def assign(tree: Node, override: Node) -> Node:
    """The tree with `override` where it is ``written``; ConfigError if another value is in the way.

    Missing mappings are added; lists do not grow.
    """
    return _assign(tree, override.written, override)


def _assign(node: Node, path: FieldPath, override: Node) -> Node:
    if not path:
        return override
    part, *below = path
    at = override.written[: len(override.written) - len(path)]
    name = format_field(at)
    if isinstance(part, int):
        if not isinstance(node.value, list):
            raise override.error(f"{name} is not a list, it has no item [{part}]")
        if part >= len(node.items):
            raise override.error(f"{name} has {len(node.items)} items, there is no [{part}]")
        changed = _assign(node.items[part], tuple(below), override)
        return replace(node, value=[*node.items[:part], changed, *node.items[part + 1 :]])
    if isinstance(node.value, list):
        raise override.error(f"{name} is a list; its items are [0], [1] and so on")
    if node.value is not None and not isinstance(node.value, Mapping):
        raise override.error(f"{name} is a single value, not a mapping")
    child = node.child(part) or Node(None, override.location, (*at, part))
    return node.with_entries({part: _assign(child, tuple(below), override)})


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
    """Reads a dotted name at the start of `text`: its path, which may be empty, and the text after it."""
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
