"""Seals on stored records: a checksum in the user's own store, a signature if others could write to the store."""

from __future__ import annotations

import hashlib
import hmac
import os

from ..errors import StoreUnusable

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

    def __init__(self, key: str | None, *, unsealed: bool = False) -> None:
        """Signs with HMAC-SHA256 under `key`, or adds a plain SHA-256 if it is None.

        With `unsealed`, a JSON object without a seal is content, too: earlier versions wrote some records so.
        """
        self._key = None if key is None else key.encode()
        self._method = b"sha256" if key is None else b"hmac-sha256"
        self._unsealed = unsealed

    def close(self, purpose: str, content: bytes) -> bytes:
        """Seals content for a purpose, for example ``stage/<key>``."""
        return _MAGIC + self._method + b" " + self._tag(purpose, content) + b"\n" + content

    def open(self, purpose: str, sealed: bytes) -> bytes:
        """Returns the content; raises SealError if the seal is not ours, broken, or for another purpose."""
        if self._unsealed and sealed.startswith(b"{"):
            return sealed
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
    """What a key is recognised by: 32 hexadecimal characters that do not give it away."""
    return hmac.new(key.encode(), b"pteforge key id", hashlib.sha256).hexdigest()[:32]


def _reason(header: bytes, method: bytes) -> str:
    if not header.startswith(b"pteforge-record "):
        return "not a record"
    if not header.startswith(_MAGIC):
        return "of another record version"
    if not header.startswith(_MAGIC + method + b" "):
        return "not signed" if method == b"hmac-sha256" else "sealed in another way"
    return "changed, truncated, or signed with another key"
