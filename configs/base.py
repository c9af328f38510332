"""The base class of configuration models, and types of fields that several of them have."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Sequence
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)


class FrozenModel(BaseModel):
    """A configuration model: immutable, and an unknown key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def describe_errors(error: ValidationError) -> str:
    """Pydantic's errors on one line, one for each field."""
    problems = {
        ".".join(map(str, problem["loc"])): problem["msg"].removeprefix("Value error, ") for problem in error.errors()
    }
    return "; ".join(f"{field}: {problem}" if field else problem for field, problem in problems.items())


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """``; did you mean 'seed'?`` if a known name is close, else a list of the known ones, if any."""
    if close := difflib.get_close_matches(name, known, n=1):
        return f"; did you mean {close[0]!r}?"
    return f"; known here: {', '.join(sorted(known))}" if known else ""


def by_key(*keys: str, problem: str) -> Discriminator:
    """Tells the models of a union apart by which one of `keys` a mapping has; their tags are ``<key>``."""

    def tag(written: object) -> str | None:
        present = [key for key in keys if (key in written if isinstance(written, dict) else hasattr(written, key))]
        return f"<{present[0]}>" if len(present) == 1 else None

    return Discriminator(tag, custom_error_type="by_key", custom_error_message=problem)


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Names of files have at most 255 bytes, endings included."""

TARGET_SEPARATOR = "+"
"""Separates targets in a chain such as ``coreml+xnnpack``: each takes the operators that those before it left."""


def _check_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN[1:-1], name):
        raise ValueError(
            f"{reprlib.repr(name)} cannot be a name, since files are named after it; "
            "use at most 128 letters, digits, '.', '_' and '-', and begin with a letter or a digit"
        )
    return name


Name = Annotated[str, AfterValidator(_check_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
"""The name of a model or a recipe."""


def _check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError("is empty; name at least one")
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"{name!r} is listed twice")
    return names


Names = Annotated[tuple[Name, ...], AfterValidator(_check_names), Field(json_schema_extra={"minItems": 1})]
"""One name or more, none of them twice."""


def _check_method_name(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not a method name; it must be a Python identifier, such as forward")
    return name


MethodName = Annotated[str, AfterValidator(_check_method_name)]

_OBJECT_REFERENCE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*\Z")


def check_object_reference(text: str) -> str:
    if not _OBJECT_REFERENCE.match(text):
        raise ValueError(f"{text!r} is neither 'package.module:callable' nor the path of a .pt2 file")
    return text


ObjectReference = Annotated[str, AfterValidator(check_object_reference)]
"""``package.module:name`` of something in the user's code, as in entry points. Reading a zoo does not import it."""


_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)"
_DURATION = re.compile(rf"\s*(?:{_PART}\s*)+\Z")
_BYTES = r"^\s*\d*\.?\d+\s*([kKmMgGtTpP]([iI]?[bB])?|[bB])?\s*$"


def parse_duration(written: object) -> object:
    """Seconds from text such as ``1h30m``, which pydantic does not read; numbers pass through. Raises ValueError."""
    if isinstance(written, str) and _DURATION.match(written):
        return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_PART, written))
    if isinstance(written, int | float) and not isinstance(written, bool):
        return written
    raise ValueError(f"{written!r} is not a duration; write seconds, or text such as '90s', '10m' or '1h30m'")


def parse_bytes(written: object) -> object:
    """Bytes from text such as ``4GiB``; whole numbers pass through. Raises ValueError otherwise."""
    if isinstance(written, str) and re.match(_BYTES, written):  # `ByteSize` ignores the rest of ``4GiB/s``
        return int(TypeAdapter(ByteSize).validate_python(written))
    if isinstance(written, int) and not isinstance(written, bool):
        return written
    raise ValueError(f"{written!r} is not a size in bytes; write a whole number, or text such as '512MiB' or '4GiB'")


def _number_or_text(number: str, pattern: str, *examples: str) -> WithJsonSchema:
    text = {"type": "string", "pattern": pattern, "examples": list(examples)}
    return WithJsonSchema({"anyOf": [{"type": number, "exclusiveMinimum": 0}, text]})


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0),
    _number_or_text("number", rf"^\s*({_PART}\s*)+$", "90s", "10m", "1h30m"),
]
"""A positive time in seconds; text with units is read too."""

CountOrSeconds = Annotated[
    int | float,
    BeforeValidator(parse_duration),
    Field(gt=0),
    _number_or_text("integer", rf"^\s*({_PART}\s*)+$", "90s", "10m", "1h30m"),
]
"""A whole number, or a positive time in seconds, which is a float and is written as text with units."""

Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0), _number_or_text("integer", _BYTES, "512MiB", "4GiB")]
"""A positive size in bytes; text with units is read too (KiB is 1024 bytes, KB is 1000)."""
