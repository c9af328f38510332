"""Field types for quantities that people write with a unit: time limits and memory sizes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, ByteSize, Field, TypeAdapter, WithJsonSchema

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)"
_DURATION = re.compile(rf"\s*(?:{_PART}\s*)+\Z")
_BYTES = r"^\s*\d*\.?\d+\s*([kKmMgGtTpP]([iI]?[bB])?|[bB])?\s*$"


def parse_duration(written: object) -> object:
    """Seconds from text such as ``10m``, ``1h30m`` or ``2.5s``; numbers pass through. Raises ValueError otherwise."""
    if isinstance(written, str) and _DURATION.match(written):
        return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_PART, written))
    if isinstance(written, int | float) and not isinstance(written, bool):
        return written
    raise ValueError(f"{written!r} is not a duration; write seconds, or text such as '90s', '10m' or '1h30m'")


def parse_bytes(written: object) -> object:
    """Bytes from text such as ``4GiB``; whole numbers pass through. Raises ValueError for anything else."""
    if isinstance(written, str) and re.match(_BYTES, written):
        return int(TypeAdapter(ByteSize).validate_python(written))
    if isinstance(written, int) and not isinstance(written, bool):
        return written
    raise ValueError(f"{written!r} is not a size in bytes; write a whole number, or text such as '512MiB' or '4GiB'")


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": rf"^\s*({_PART}\s*)+$", "examples": ["90s", "10m", "1h30m"]},
            ]
        }
    ),
]
"""A time in seconds, more than 0; text with units is read too."""


Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    Field(gt=0),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {"type": "string", "pattern": _BYTES, "examples": ["512MiB", "4GiB"]},
            ]
        }
    ),
]
"""A size in bytes, more than 0; text with units is read too (KiB is 1024 bytes, KB is 1000)."""
