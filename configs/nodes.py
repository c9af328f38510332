"""Trees of configuration values in which every value knows where it was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import Location
from .fields import FieldPath

Scalar = str | int | float | bool | None
Plain = Scalar | list["Plain"] | dict[str, "Plain"]


@dataclass(frozen=True, slots=True)
class Node:
    """One value and where it stands.

    Attributes:
        value: a scalar, or the nodes of a mapping or of a list. Mapping keys are always text.
        location: the position of the key for an entry of a mapping, of the value itself for an item of a list.
        written: the place in the file (or the ``--set`` key) that the value was written at. Merging moves nodes about,
            errors still name the field as the user knows it.
    """

    value: Scalar | Mapping[str, Node] | Sequence[Node]
    location: Location
    written: FieldPath = ()

    @property
    def entries(self) -> Mapping[str, Node]:
        """The entries of a mapping; empty for anything else."""
        return self.value if isinstance(self.value, Mapping) else {}

    @property
    def items(self) -> Sequence[Node]:
        """The items of a list; empty for anything else."""
        return self.value if isinstance(self.value, Sequence) and not isinstance(self.value, str) else ()

    def child(self, part: str | int) -> Node | None:
        """The entry or item of that key or index; None where there is none."""
        if isinstance(part, int):
            return self.items[part] if 0 <= part < len(self.items) else None
        return self.entries.get(part)

    def with_entries(self, entries: Mapping[str, Node]) -> Node:
        """The same place, holding a mapping of these entries added to its own; new ones win."""
        return replace(self, value={**self.entries, **entries})

    def without(self, *keys: str) -> Node:
        """The same mapping without these keys."""
        return replace(self, value={key: node for key, node in self.entries.items() if key not in keys})


def plain(node: Node) -> Plain:
    """The value as JSON has it: scalars, lists and dictionaries, without locations."""
    if isinstance(node.value, Mapping):
        return {key: plain(entry) for key, entry in node.value.items()}
    if isinstance(node.value, Sequence) and not isinstance(node.value, str):
        return [plain(item) for item in node.value]
    return node.value


def located(value: Plain, place: Node) -> Node:
    """The tree of a plain value all of which stands where `place` does."""
    if isinstance(value, dict):
        return replace(place, value={key: located(entry, place) for key, entry in value.items()})
    if isinstance(value, list):
        return replace(place, value=[located(item, place) for item in value])
    return replace(place, value=value)


def nearest(root: Node, path: FieldPath) -> tuple[Node, FieldPath]:
    """The node at `path`, or else its nearest ancestor that exists, and the part of the path that was not found."""
    node = root
    for depth, part in enumerate(path):
        below = node.child(part)
        if below is None:
            return node, path[depth:]
        node = below
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
    """The same tree with every scalar replaced by ``change(path, scalar)``; `at` is the path of `node` itself."""
    if isinstance(node.value, Mapping):
        return replace(node, value={key: map_scalars(entry, change, (*at, key)) for key, entry in node.value.items()})
    if isinstance(node.value, Sequence) and not isinstance(node.value, str):
        return replace(node, value=[map_scalars(item, change, (*at, i)) for i, item in enumerate(node.value)])
    return replace(node, value=change(at, node.value))
