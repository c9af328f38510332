"""Names of models and recipes. They become names of folders and files: ``out/<model>/<recipe>.pte``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


def _check_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN[1:-1], name):
        raise ValueError(
            f"{name!r} cannot be a name, since files are called by it; "
            "use letters, digits, '.', '_' and '-', and begin with a letter or a digit"
        )
    return name


Name = Annotated[str, AfterValidator(_check_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
"""The name of a model or a recipe."""


def check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Raises ValueError where a name stands twice."""
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"{name!r} stands here twice")
    return names
