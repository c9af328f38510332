"""Relative paths in a file mean places beside that file."""

from __future__ import annotations

import os
from pathlib import Path

from .fields import FieldPath
from .nodes import Node, Scalar, map_scalars


def absolute_paths(tree: Node, base: Path, at: FieldPath = ()) -> Node:
    """The same tree with the paths in it made absolute.

    Args:
        tree: a zoo file as written, or the part of one that stands at `at`.
        base: the folder that relative paths start from.
        at: the place of `tree` in the file.
    """

    def change(path: FieldPath, value: Scalar) -> Scalar:
        return os.path.abspath(base / value) if isinstance(value, str) and _is_path(path, value) else value  # noqa: PTH100  # resolve() would follow links

    return map_scalars(tree, change, at)


def _is_path(path: FieldPath, text: str) -> bool:
    match path:
        case ("models", _, "source") | ("defaults", "model", "source"):
            return text.endswith(".pt2")
        case (
            ("python_path" | "include", int())
            | ("models", _, "source", "program")
            | ("defaults", "model", "source", "program")
            | ("models", _, "source", "files", int())
            | ("defaults", "model", "source", "files", int())
            | ("models", _, "calibration", _, "files", int())
            | ("recipes", _, "source_transforms", int(), "files", int())
            | ("models" | "recipes", _, "accuracy", "files", int())
            | ("defaults", "model", "accuracy", "files", int())
        ):
            return True
    return False
