"""The output of a process, bounded in memory: of a very long one, the head and the tail."""

from __future__ import annotations

import unicodedata

_LIMIT = 1 << 20
_TAIL_LINES = 40
_TAIL_BYTES = 16 << 10


class CappedLog:
    """Collects bytes and forgets the middle once there are more than `limit`."""

    def __init__(self, limit: int = _LIMIT) -> None:
        """Keeps half of `limit` bytes at either end."""
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, chunk: bytes) -> None:
        """Appends what the process wrote next."""
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._half:  # trimmed now and then, so that a byte is moved at most once or twice
            self._trim()

    def content(self) -> bytes:
        """Everything, or head and tail around a line that says how many bytes were left out."""
        self._trim()
        gap = b"\n[... %d bytes left out ...]\n" % self._dropped if self._dropped else b""
        return bytes(self._head) + gap + bytes(self._tail)

    def _trim(self) -> None:
        excess = len(self._tail) - self._half
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess


def tail_lines(log: bytes, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log as text fit for a terminal: control characters and bad UTF-8 are replaced."""
    text = log[-_TAIL_BYTES:].decode("utf-8", errors="replace")
    last = text.rstrip().splitlines()[-lines:]
    return "\n".join("".join(map(_shown, line)) for line in last)


def _shown(character: str) -> str:
    return character if character == "\t" or unicodedata.category(character) != "Cc" else "\N{REPLACEMENT CHARACTER}"
