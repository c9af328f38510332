"""Records: frozen dataclasses that are stored as canonical JSON and validated when they are read.

Their JSON is a storage format. A new attribute needs a default, so that records of earlier versions can still be read.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from .digest import canonical_json
from .files import NamedFiles
from .signing import Seal

_Kind = TypeVar("_Kind")
_log = logging.getLogger(__name__)


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
    """Parses JSON of a type without converting values; raises a one-line ValueError that names the first problem.

    Nesting is bounded: pydantic's parser ends at a depth of 200.
    """
    try:
        value: _Kind = _adapter(kind).validate_json(content, strict=True)  # type: ignore[arg-type] # so are types
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"]))
        where = f" at {place!r:.100}" if place else ""
        raise ValueError(f"not a valid {getattr(kind, '__name__', kind)}: {problem['msg']}{where}") from error
    return value


class RecordFiles:
    """Records in the files of a store, which others may be able to write.

    A record that cannot be trusted (too large, truncated, garbled, of another version, not sealed with our key) counts
    as absent; each is reported once.
    """

    def __init__(self, files: NamedFiles, seal: Seal | None) -> None:
        """Keeps records in `files`, wrapped by `seal`; plain JSON without one."""
        self._files = files
        self._seal = seal
        self._reported: set[str] = set()

    def read(self, name: str, purpose: str, kind: type[_Kind], limit: int | None = None) -> _Kind | None:
        """The record in a file, sealed for a purpose; `limit` is its largest size in bytes, as for `NamedFiles.read`.

        Raises StoreUnusable if the files cannot be reached.
        """
        content = self._files.read(name) if limit is None else self._files.read(name, limit)
        try:
            if content is None:
                return None
            return decode(kind, self._seal.open(purpose, content) if self._seal else content)
        except ValueError as error:
            if name not in self._reported:
                self._reported.add(name)
                _log.warning("the store's record %r is not used: %s", purpose, error)
            return None

    def write(self, name: str, purpose: str, content: bytes) -> None:
        self._files.write(name, self.sealed(purpose, content))

    def sealed(self, purpose: str, content: bytes) -> bytes:
        return self._seal.close(purpose, content) if self._seal else content


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Builds a type's validator once, when it is first used: that takes milliseconds."""
    return TypeAdapter(kind)
