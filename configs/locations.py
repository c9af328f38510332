"""Where the values of a loaded zoo were written, for checks that come after loading."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError, Location
from .fields import FieldPath, format_field
from .nodes import Node, nearest


@dataclass(frozen=True, slots=True)
class Locations:
    """Places in a loaded zoo, to places in the files it was read from.

    Attributes:
        root: the zoo as a tree of nodes, with defaults, overrides and ``extends`` worked in.
    """

    root: Node

    def find(self, path: FieldPath) -> Location:
        """Where the value at `path` stands, or else what encloses it most closely.

        Args:
            path: keys and indices from the zoo down, such as ``("models", "resnet8", "recipes", 0)``.

        Returns:
            The position of the key for an entry of a mapping, of the value for an item of a list. The `file` of a value
            that came from the command line is its ``--set`` and key, without line and column.
        """
        return nearest(self.root, path)[0].location

    def error(self, problem: str, path: FieldPath) -> ConfigError:
        """The error to raise for a problem with the value at `path`. It names the field as the user wrote it."""
        node, missing = nearest(self.root, path)
        return ConfigError(problem, location=node.location, field=format_field((*node.written, *missing)) or None)
