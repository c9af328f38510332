"""Records: frozen dataclasses that are stored as canonical JSON, sealed, and validated when they are read.

Their JSON is a storage format. A new attribute needs a default, so that records of earlier versions can still be read.
The seal is a checksum in the user's own store, a signature if others could write to the store.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from functools import cache
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from ..errors import StoreUnusable
from .digest import canonical_json
from .files import NamedFiles

KEY_VARIABLE = "PTEFORGE_SIGNING_KEY"
NEW_KEY_VARIABLE = "PTEFORGE_NEW_SIGNING_KEY"
_MINIMUM = 32
_MAGIC = b"pteforge-record 1 "


class SealError(ValueError):
    """Content that no holder of the key sealed for this purpose, or that was changed afterwards."""


class Seal:
    """Wraps content so that `open` returns only what `close` received, for the same purpose and with the same key.

    Sealed content is the line ``pteforge-record 1 <method> <hexadecimal tag>``, then the content. The tag covers the
    purpose, so `open` rejects a record that was copied to another one's place. Refs are digests of content: a signature
    on a record covers everything that its refs lead to.
    """

    def __init__(self, key: str | None) -> None:
        """Signs with HMAC-SHA256 under `key`, or adds a plain SHA-256 if it is None."""
        self._key = None if key is None else key.encode()
        self._method = b"sha256" if key is None else b"hmac-sha256"

    def close(self, purpose: str, content: bytes) -> bytes:
        """Seals content for a purpose, for example ``stage/<key>``."""
        return _MAGIC + self._method + b" " + self._tag(purpose, content) + b"\n" + content

    def open(self, purpose: str, sealed: bytes) -> bytes:
        """Returns the content; raises SealError if the seal is not ours, broken, or for another purpose."""
        header, newline, content = sealed.partition(b"\n")
        expected = _MAGIC + self._method + b" " + self._tag(purpose, content)
        if not newline or not hmac.compare_digest(header, expected):
            raise SealError(_reason(header, self._method))
        return content

    def _tag(self, purpose: str, content: bytes) -> bytes:
        message = purpose.encode() + b"\0" + content
        if self._key is None:
            return hashlib.sha256(message).hexdigest().encode()
        return hmac.new(self._key, message, hashlib.sha256).hexdigest().encode()


def signing_key(url: str, variable: str = KEY_VARIABLE) -> str:
    """The key for a store that others can reach; raises StoreUnusable, with how to create one, if it is not set."""
    key = os.environ.get(variable, "")
    if len(key) < _MINIMUM:
        problem = f"{variable} has fewer than {_MINIMUM} characters" if key else f"{variable} is not set"
        raise StoreUnusable(
            f"the store {url} needs a signing key, and {problem}: stored programs are pickles, so records of a shared "
            "store are signed. Create a key once, and give it to everybody who uses the store:\n"
            f'  export {variable}=$(python -c "import secrets; print(secrets.token_hex(32))")'
        )
    return key


def key_id(key: str) -> str:
    """Identifies a key without revealing it: 32 hexadecimal characters."""
    return hmac.new(key.encode(), b"pteforge key id", hashlib.sha256).hexdigest()[:32]


def _reason(header: bytes, method: bytes) -> str:
    if not header.startswith(b"pteforge-record "):
        return "not a record"
    if not header.startswith(_MAGIC):
        return "of another record version"
    if not header.startswith(_MAGIC + method + b" "):
        return "not signed" if method == b"hmac-sha256" else "sealed in another way"
    return "changed, truncated, or signed with another key"


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
    """Parses JSON strictly, at most 200 levels deep; raises a one-line ValueError that names the first problem."""
    try:
        value: _Kind = _adapter(kind).validate_json(content, strict=True)  # type: ignore[arg-type] # so are types
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(map(str, problem["loc"]))
        where = f" at {path!r:.100}" if path else ""
        raise ValueError(f"not a valid {getattr(kind, '__name__', kind)}: {problem['msg']}{where}") from error
    return value


class RecordFiles:
    """Records in a store's files; one that cannot be trusted (too large, garbled, another version or key) is absent."""

    def __init__(self, files: NamedFiles, seal: Seal | None) -> None:
        """Keeps records in `files`, wrapped by `seal`; plain JSON without one."""
        self._files = files
        self._seal = seal
        self._reported: set[str] = set()  # names of untrusted records, each reported once

    def read(self, name: str, purpose: str, kind: type[_Kind], limit: int | None = None) -> _Kind | None:
        """The record in a file, sealed for a purpose and of at most `limit` bytes; raises StoreUnusable."""
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
