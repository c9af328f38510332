"""YAML as trees of values that know where they were written, and dotted names of fields.

YAML is read safely, bounded, and with the scalars of YAML 1.2. PyYAML resolves scalars by YAML 1.1, where ``no`` is
false, ``1e-3`` is text and ``1:30`` is ninety. Editors that check a file against a JSON Schema use the core schema of
YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema), and so does this module. Merge keys (``<<``) still work, since
people know them. Keys are text, whatever they look like.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ..errors import ConfigError, Location

FieldPath = tuple[str | int, ...]
"""A path in a tree: mapping keys and list indices, from the root down."""

Scalar = str | int | float | bool | None
Plain = Scalar | list["Plain"] | dict[str, "Plain"]


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it was written: merging moves nodes, but errors name the field as the user wrote it."""

    value: Scalar | Mapping[str, Node] | Sequence[Node]  # a scalar, or the nodes of a mapping or a list
    location: Location  # of the key for an entry of a mapping, of the value for an item of a list
    written: FieldPath = ()  # the path in the file, or the ``--set`` key

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
        """The location of the value at `path`, or of the closest enclosing value that exists."""
        return nearest(self.root, path)[0].location

    def written_at(self, path: FieldPath) -> Location | None:
        """The exact location of the value at `path`; None if there is no such value."""
        node, missing = nearest(self.root, path)
        return None if missing else node.location

    def is_the_users(self, path: FieldPath) -> bool:
        """Whether there is a value at `path` that no shipped recipe has written."""
        location = self.written_at(path)
        return location is not None and not location.file.startswith("<preset ")

    def error(self, problem: str, path: FieldPath) -> ConfigError:
        node, missing = nearest(self.root, path)
        return replace(node, written=(*node.written, *missing)).error(problem)


def plain(node: Node) -> Plain:
    if isinstance(node.value, Mapping):
        return {key: plain(entry) for key, entry in node.value.items()}
    if isinstance(node.value, Sequence) and not isinstance(node.value, str):
        return [plain(item) for item in node.value]
    return node.value


def located(value: Plain, source: Node, *, as_written: bool = False) -> Node:
    """The tree of a plain value, all located at `source`; `as_written`: also with their own fields."""

    def below(part: str | int, entry: Plain) -> Node:
        return located(entry, replace(source, written=(*source.written, *[part] * as_written)), as_written=as_written)

    if isinstance(value, dict):
        return replace(source, value={key: below(key, entry) for key, entry in value.items()})
    if isinstance(value, list):
        return replace(source, value=[below(index, item) for index, item in enumerate(value)])
    return replace(source, value=value)


def nearest(root: Node, path: FieldPath) -> tuple[Node, FieldPath]:
    """The node at `path`, or its nearest ancestor that exists, and the part of the path that was not found."""
    node = root
    for depth, part in enumerate(path):
        child = node.child(part)
        if child is None:
            return node, path[depth:]
        node = child
    return node, ()


def deep_merge(base: Node, update: Node) -> Node:
    """`base` with `update`, which wins: mappings merge entry by entry, other values replace."""
    if not (isinstance(base.value, Mapping) and isinstance(update.value, Mapping)):
        return update
    merged = dict(base.value)
    for key, node in update.value.items():
        merged[key] = deep_merge(merged[key], node) if key in merged else node
    return replace(update, value=merged)


def map_scalars(node: Node, change: Callable[[FieldPath, Scalar], Scalar], at: FieldPath = ()) -> Node:
    """The tree with every scalar replaced by ``change(path, scalar)``; `at` is the path of `node` itself."""
    if isinstance(node.value, Mapping):
        return replace(node, value={key: map_scalars(entry, change, (*at, key)) for key, entry in node.value.items()})
    if isinstance(node.value, Sequence) and not isinstance(node.value, str):
        return replace(node, value=[map_scalars(item, change, (*at, i)) for i, item in enumerate(node.value)])
    return replace(node, value=change(at, node.value))


def assign(node: Node, override: Node, depth: int = 0) -> Node:
    """The tree with `override` where it is ``written``; ConfigError if another value is in the way.

    Missing mappings are added; lists do not grow. The node is at that `depth` of the path.
    """
    if depth == len(override.written):
        return override
    part, name = override.written[depth], format_field(override.written[:depth])
    if isinstance(part, int):
        if not isinstance(node.value, list):
            raise override.error(f"{name} is not a list, it has no item [{part}]")
        if part >= len(node.items):
            raise override.error(f"{name} has {len(node.items)} items, there is no [{part}]")
        changed = assign(node.items[part], override, depth + 1)
        return replace(node, value=[*node.items[:part], changed, *node.items[part + 1 :]])
    if isinstance(node.value, list):
        raise override.error(f"{name} is a list; its items are [0], [1] and so on")
    if node.value is not None and not isinstance(node.value, Mapping):
        raise override.error(f"{name} is a single value, not a mapping")
    child = node.child(part) or Node(None, override.location, override.written[: depth + 1])
    return node.with_entries({part: assign(child, override, depth + 1)})


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


_MAX_BYTES = 16 * 2**20
_MAX_DEPTH = 64
_TOO_DEEP = "exceeded maximum nesting depth"  # of the scanner, which is ahead of the parser (libyaml of PyYAML 6.0.4)
_MAX_NODES = 100_000  # after aliases are expanded
_MAX_DIGITS = 100  # Python reads hexadecimal numbers of any length, but does not write them into a message

_TAG = "tag:yaml.org,2002:"


def read_yaml(path: Path, name: str, included_by: Node | None = None) -> Node:
    """A YAML file as a tree; messages call it `name`. Raises ConfigError, at `included_by` if it cannot be read."""
    reader = included_by or Node(None, Location(name))
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would wait for its other end
            raise reader.error(f"cannot read {name}: it is a pipe or a device")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise reader.error(f"cannot read {name}: {error.strerror or error}") from error
    if len(content) > _MAX_BYTES:
        raise reader.error(f"cannot read {name}: it has more than {_MAX_BYTES >> 20} MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", errors="replace")
        raise ConfigError("not UTF-8 text", location=_end(before, name)) from error
    return parse_yaml(text, name)


def parse_yaml(text: str, file: str, *, fixed: Location | None = None, at: FieldPath = ()) -> Node:
    """The root of the one document in `text`, which is written at the path `at`.

    Locations and messages name the text `file`. For text that does not come from a file, all nodes are at `fixed`.
    Raises ConfigError for bad syntax, duplicate keys, unsupported tags, infinite numbers, and deep or repeated nesting.
    """

    def locate(mark: Any) -> Location:  # the C parser has a mark type of its own
        return fixed or (Location(file, mark.line + 1, mark.column + 1) if mark else Location(file))

    try:
        _check_depth(text, locate)
        root = yaml.compose(text, Loader=_Composer)
    except yaml.MarkedYAMLError as error:
        location = locate(error.problem_mark or error.context_mark)
        if error.problem == _TOO_DEEP:
            raise ConfigError(f"nested more than {_MAX_DEPTH} levels deep", location=location) from error
        context = f" ({error.context})" if error.context else ""
        message = f"{error.problem}{context}"
        advice = next((text for pattern, text in _ADVICE.items() if re.search(pattern, message)), message)
        raise ConfigError(f"not valid YAML: {advice}", location=location) from error
    except yaml.reader.ReaderError as error:
        before = text.encode()[: error.position].decode(errors="ignore")  # the C parser counts bytes
        raise ConfigError(f"not valid YAML: {error.reason}", location=fixed or _end(before, file)) from error
    if root is None:
        return Node(None, fixed or Location(file, 1, 1), at)
    return _Converter(locate).convert(root, at, locate(root.start_mark))


_ADVICE = {
    r"cannot start any token": "a line begins with a tab, or a value with a character that YAML reserves, such as "
    "`@` or `%`; indent with spaces, and put the value in quotes",
    r"expected ',' or '\}'": "a `{` is not closed with `}`, or a comma is missing between its entries",
    r"expected ',' or '\]'": "a `[` is not closed with `]`, or a comma is missing between its items",
    r"mapping values are not allowed": "a `:` where no key can be; indent the line as those next to it, or put a text "
    "that has a `: ` in quotes",
    r"expected <block end>|expected key|could not find expected ':'": "a line is indented otherwise than those next to "
    "it, or has no `:` after its key",
}
"""Pattern of the parser's message to the usual mistake behind it."""


class _Composer(yaml.CBaseLoader):
    """Builds PyYAML's nodes and nothing else: no tag can make an object."""


for _kind, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    ("int", r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z", list("-+0123456789")),
    (
        "float",
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z",
        list("-+.0123456789"),
    ),
    ("merge", r"<<\Z", ["<"]),
):
    _Composer.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), _first)


def _end(text: str, file: str) -> Location:
    """The position after `text`, the beginning of a file."""
    return Location(file, text.count("\n") + 1, len(text) - text.rfind("\n"))


def _check_depth(text: str, locate: Callable[[Any], Location]) -> None:
    """The composer is recursive C code: deep enough nesting would crash the process, so check first."""
    depth = 0
    for event in yaml.parse(text, Loader=_Composer):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise ConfigError(f"nested more than {_MAX_DEPTH} levels deep", location=locate(event.start_mark))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _read_scalar(tag: str, text: str) -> Scalar:
    """Raises ValueError for text that the tag does not allow, and for tags that are not supported."""
    match tag.split(_TAG):
        case ["", "null"]:
            return None
        case ["", "bool"]:
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{text!r} is not true or false")
            return text.lower() == "true"
        case ["", "int"]:
            if len(text) > _MAX_DIGITS:
                raise ValueError(f"{text[:40]!r}... is a number of more than {_MAX_DIGITS} digits")
            return int(text, 0 if text.startswith(("0o", "0x")) else 10)
        case ["", "float"]:
            with suppress(ValueError):
                if math.isfinite(number := float(text)):
                    return number
            raise ValueError(f"{text[:40]!r} is not a finite number")
        case ["", "str" | "merge"]:  # `<<` as a value is text
            if "\0" in text:  # no file name, module name or option can hold it, the operating system would stop there
                raise ValueError("text cannot hold a NUL character")
            return text
    raise ValueError(f"the tag {tag!r} is not supported here")


@dataclass
class _Converter:
    """Converts PyYAML's nodes to ours, expanding aliases and merge keys up to a bound."""

    locate: Callable[[Any], Location]
    count: int = 0
    open_nodes: set[int] = field(default_factory=set)

    def convert(self, node: yaml.Node, at: FieldPath, location: Location) -> Node:
        self.count += 1
        if self.count > _MAX_NODES:
            self._fail("aliases repeat so much that the file grows out of bounds", node, at)
        if id(node) in self.open_nodes:
            self._fail("an alias is inside the value that it names", node, at)
        self.open_nodes.add(id(node))
        try:
            match node:
                case yaml.MappingNode(tag="tag:yaml.org,2002:map"):
                    return Node(self._entries(node, at), location, at)
                case yaml.SequenceNode(tag="tag:yaml.org,2002:seq"):
                    items = [self.convert(item, (*at, i), self._location(item)) for i, item in enumerate(node.value)]
                    return Node(items, location, at)
                case yaml.ScalarNode():
                    return Node(_read_scalar(node.tag, node.value), location, at)
            return self._fail(f"the tag {node.tag!r} is not supported here", node, at)
        except ValueError as error:
            return self._fail(str(error), node, at)
        finally:
            self.open_nodes.discard(id(node))

    def _entries(self, mapping: yaml.MappingNode, at: FieldPath) -> dict[str, Node]:
        merged: dict[str, Node] = {}
        own: dict[str, Node] = {}
        seen: set[str] = set()
        for key, value in mapping.value:
            if not isinstance(key, yaml.ScalarNode):
                self._fail("a key must be text, not a list or a mapping", key, at)
            if key.value in seen:
                self._fail(f"the key {key.value!r} is written twice in the same mapping", key, (*at, key.value))
            seen.add(key.value)
            if key.tag == f"{_TAG}merge":
                for source in self._merge_sources(value, at):
                    merged = {**self.convert(source, at, self._location(source)).entries, **merged}
            else:
                own[key.value] = self.convert(value, (*at, key.value), self._location(key))
        return {**merged, **own}

    def _merge_sources(self, value: yaml.Node, at: FieldPath) -> Iterator[yaml.MappingNode]:
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if not isinstance(source, yaml.MappingNode):
                self._fail("`<<` takes a mapping, or a list of mappings", source, at)
            yield source

    def _location(self, node: yaml.Node) -> Location:
        return self.locate(node.start_mark)

    def _fail(self, problem: str, node: yaml.Node, at: FieldPath) -> NoReturn:
        raise ConfigError(problem, location=self._location(node), field=format_field(at) or None)
