"""Names of models and recipes. They become names of folders and files: ``out/<model>/<recipe>.pte``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

TARGET_SEPARATOR = "+"
"""What stands between the names of targets that take what those before them leave, as in ``coreml+xnnpack``."""


def _check_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN[1:-1], name):
        raise ValueError(
            f"{name!r} cannot be a name, since files are called by it; "
            "use letters, digits, '.', '_' and '-', and begin with a letter or a digit"
        )
    return name


Name = Annotated[str, AfterValidator(_check_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
"""The name of a model or a recipe."""


def _check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError("is empty; name at least one")
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"{name!r} stands here twice")
    return names


Names = Annotated[tuple[Name, ...], AfterValidator(_check_names), Field(json_schema_extra={"minItems": 1})]
"""At least one name, none twice."""
