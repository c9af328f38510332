"""Reads YAML into located nodes: safe, bounded, and with the scalars of YAML 1.2.

PyYAML resolves scalars by YAML 1.1, where ``no`` is false, ``1e-3`` is text and ``1:30`` is ninety. Editors that check
a file against a JSON Schema use the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema), and so do
we. Merge keys (``<<``) stay, since people know them. Keys are text, whatever they look like.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from ..errors import ConfigError, Location
from .fields import FieldPath, format_field
from .nodes import Node, Scalar

_MAX_DEPTH = 64
_MAX_NODES = 100_000  # what a file may grow to when its aliases are written out

_TAG = "tag:yaml.org,2002:"
_NULL, _BOOL, _INT, _FLOAT, _MERGE, _STR = (_TAG + kind for kind in ("null", "bool", "int", "float", "merge", "str"))


class _Composer(yaml.CBaseLoader):
    """Builds PyYAML's nodes and nothing else: no tag can make an object."""


for _tag, _pattern, _first in (
    (_NULL, r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    (_BOOL, r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    (_INT, r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z", list("-+0123456789")),
    (
        _FLOAT,
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z",
        list("-+.0123456789"),
    ),
    (_MERGE, r"<<\Z", ["<"]),
):
    _Composer.add_implicit_resolver(_tag, re.compile(_pattern), _first)


def parse_yaml(text: str, file: str, *, fixed: Location | None = None, at: FieldPath = ()) -> Node:
    """The one document in `text`.

    Args:
        text: YAML.
        file: what locations and messages call the text.
        fixed: the location of every node, for text that is not a file's.
        at: the place that the document is written at.

    Returns:
        The document's root; an empty document is a None scalar.

    Raises:
        ConfigError: a syntax error, a duplicate key, a tag, a number that is not finite, or aliases or nesting that
            grow out of bounds.
    """
    try:
        _check_depth(text, file, fixed)
        root = yaml.compose(text, Loader=_Composer)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        context = f" ({error.context})" if error.context else ""
        location = fixed or _location(file, mark)
        raise ConfigError(f"not valid YAML: {error.problem}{context}", location=location) from error
    except yaml.reader.ReaderError as error:
        before = text.encode()[: error.position].decode(errors="ignore")  # the C parser counts bytes
        location = fixed or Location(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise ConfigError(f"not valid YAML: {error.reason}", location=location) from error
    if root is None:
        return Node(None, fixed or Location(file, 1, 1), at)
    return _Converter(file, fixed).convert(root, at, fixed or _location(file, root.start_mark))


def _location(file: str, mark: Any) -> Location:
    """PyYAML's C parser has a mark type of its own; both count from 0."""
    return Location(file, mark.line + 1, mark.column + 1) if mark else Location(file)


def _check_depth(text: str, file: str, fixed: Location | None) -> None:
    """The composer is recursive C code: text that nests deeply enough would crash the process, so look first."""
    depth = 0
    for event in yaml.parse(text, Loader=_Composer):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                location = fixed or _location(file, event.start_mark)
                raise ConfigError(f"nested more than {_MAX_DEPTH} levels deep", location=location)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _read_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is not true or false")
    return text.lower() == "true"


def _read_int(text: str) -> int:
    try:
        return int(text, 0 if text.startswith(("0o", "0x")) else 10)
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} cannot be read as a whole number") from error


def _read_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is not a finite number") from error
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]!r} is not a finite number")
    return number


def _read_null(text: str) -> None:
    """Nothing, whatever the text: a tag may stand before any."""


def _read_text(text: str) -> str:
    if "\0" in text:  # no file name, module name or option can hold it, and the operating system would stop there
        raise ValueError("text cannot hold a NUL character")
    return text


_SCALARS: Mapping[str, Callable[[str], Scalar]] = {
    _NULL: _read_null,
    _BOOL: _read_bool,
    _INT: _read_int,
    _FLOAT: _read_float,
    _STR: _read_text,
    _MERGE: _read_text,  # `<<` as a value
}


@dataclass
class _Converter:
    """From PyYAML's nodes to ours, writing out aliases and merge keys, with a bound on what comes out."""

    file: str
    fixed: Location | None
    made: int = 0
    open_nodes: set[int] = field(default_factory=set)

    def convert(self, node: yaml.Node, at: FieldPath, location: Location) -> Node:
        """`node` as it stands at the path `at`."""
        self.made += 1
        if self.made > _MAX_NODES:
            self._fail("aliases repeat so much that the file grows out of bounds", node, at)
        if id(node) in self.open_nodes:
            self._fail("an alias stands inside what it names", node, at)
        self.open_nodes.add(id(node))
        try:
            match node:
                case yaml.MappingNode(tag="tag:yaml.org,2002:map"):
                    return Node(self._entries(node, at), location, at)
                case yaml.SequenceNode(tag="tag:yaml.org,2002:seq"):
                    items = [self.convert(item, (*at, i), self._place(item)) for i, item in enumerate(node.value)]
                    return Node(items, location, at)
                case yaml.ScalarNode():
                    return Node(self._scalar(node, at), location, at)
            return self._fail(f"the tag {node.tag!r} is not supported here", node, at)
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
            if key.tag == _MERGE:
                for source in self._merge_sources(value, at):
                    merged = {**self.convert(source, at, self._place(source)).entries, **merged}
            else:
                own[key.value] = self.convert(value, (*at, key.value), self._place(key))
        return {**merged, **own}

    def _merge_sources(self, value: yaml.Node, at: FieldPath) -> Iterator[yaml.MappingNode]:
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if not isinstance(source, yaml.MappingNode):
                self._fail("`<<` takes a mapping, or a list of mappings", source, at)
            yield source

    def _scalar(self, node: yaml.ScalarNode, at: FieldPath) -> Scalar:
        read = _SCALARS.get(node.tag)
        if read is None:
            self._fail(f"the tag {node.tag!r} is not supported here", node, at)
        try:
            return read(node.value)
        except ValueError as error:
            return self._fail(str(error), node, at)

    def _place(self, node: yaml.Node) -> Location:
        return self.fixed or _location(self.file, node.start_mark)

    def _fail(self, problem: str, node: yaml.Node, at: FieldPath) -> NoReturn:
        raise ConfigError(problem, location=self._place(node), field=format_field(at) or None)
