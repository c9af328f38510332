"""Records: frozen dataclasses that are stored as canonical JSON and validated when they are read.

Their JSON is a storage format. A new attribute needs a default, so that records of earlier versions can still be read.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from .digest import canonical_json

_Kind = TypeVar("_Kind")


class Record:
    """Base of the dataclasses. Their JSON is an object of their attributes; tuples are arrays."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = _adapter(type(self)).dump_python(self)  # type: ignore[arg-type] # classes are hashable
        return values

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls.decode(canonical_json(value))

    def encode(self) -> bytes:
        """Canonical JSON: equal records have equal bytes. Raises ValueError or TypeError for what is not JSON."""
        return canonical_json(self.to_json())

    @classmethod
    def decode(cls, content: bytes) -> Self:
        return decode(cls, content)


def decode(kind: type[_Kind], content: bytes) -> _Kind:
    """Parses JSON of a type without converting values; raises a one-line ValueError that names the first problem."""
    try:
        value: _Kind = _adapter(kind).validate_json(content, strict=True)  # type: ignore[arg-type] # so are types
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"]))
        where = f" at {place!r:.100}" if place else ""
        raise ValueError(f"not a valid {getattr(kind, '__name__', kind)}: {problem['msg']}{where}") from error
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Builds a type's validator once, when it is first used: that takes milliseconds."""
    return TypeAdapter(kind)
