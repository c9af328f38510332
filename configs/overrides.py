"""``--set KEY=VALUE``: changes to a zoo from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import ConfigError, Location
from .fields import FieldPath, format_field, read_field
from .nodes import Node
from .yaml_nodes import parse_yaml


@dataclass(frozen=True, slots=True)
class Override:
    """One change.

    Attributes:
        path: what is set.
        value: what it is set to; its location names the ``--set`` and the key, and not the value, which may be private.
    """

    path: FieldPath
    value: Node


def parse_override(text: str) -> Override:
    """Reads ``KEY=VALUE``: a dotted field name, and YAML. Raises ConfigError for text that is neither."""
    path, rest = read_field(text)
    key = text.partition("=")[0].strip()
    location = Location(f"--set {key}")
    if not path or not rest.startswith("="):
        problem = "write KEY=VALUE, for example models.resnet8.seed=3 or models.resnet8.recipes[0]=mine"
        raise ConfigError(problem, location=location)
    location = Location(f"--set {format_field(path)}")
    return Override(path, parse_yaml(rest[1:], location.file, fixed=location, at=path))


def assign(tree: Node, override: Override) -> Node:
    """The tree with the override worked in. Mappings on the way are made where there are none; lists do not grow.

    Raises:
        ConfigError: the path goes through a value that has no such entry or item.
    """
    return _assign(tree, override.path, override)


def _assign(node: Node, path: Sequence[str | int], override: Override) -> Node:
    if not path:
        return override.value
    part, *below = path
    here = override.path[: len(override.path) - len(path)]
    if isinstance(part, int):
        if not isinstance(node.value, list):
            raise _misfit(f"{format_field(here)} is not a list, it has no item [{part}]", override)
        if part >= len(node.items):
            raise _misfit(f"{format_field(here)} has {len(node.items)} items, there is no [{part}]", override)
        changed = _assign(node.items[part], below, override)
        return replace(node, value=[*node.items[:part], changed, *node.items[part + 1 :]])
    if isinstance(node.value, list) or not (node.value is None or node.entries or node.value == {}):
        what = (
            "list; its items are [0], [1] and so on" if isinstance(node.value, list) else "single value, not a mapping"
        )
        raise _misfit(f"{format_field(here)} is a {what}", override)
    start = node.child(part) or Node(None, override.value.location, (*here, part))
    return node.with_entries({part: _assign(start, below, override)})


def _misfit(problem: str, override: Override) -> ConfigError:
    return ConfigError(problem, location=override.value.location, field=format_field(override.path))
