"""Logs in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pteforge.tasks.workers.capped_log import CappedLog, tail_lines


@given(st.lists(st.binary(max_size=40)), st.integers(2, 100))
def test_short_logs_are_whole_and_long_ones_bounded(chunks, limit):
    """Up to the limit nothing changes; past it, head and tail are exact and the gap says how much is missing."""
    log = CappedLog(limit)
    for chunk in chunks:
        log.add(chunk)
    written, half = b"".join(chunks), limit // 2
    if len(written) <= 2 * half:
        assert log.content() == written
    else:
        missing = len(written) - 2 * half
        gap = b"\n[... %d bytes left out ...]\n" % missing
        assert log.content() == written[:half] + gap + written[-half:]


@given(st.binary())
def test_tail_is_always_safe_to_print(log):
    """Whatever the bytes, the tail is text without control characters, and not too much of it."""
    tail = tail_lines(log)
    assert all(character in "\n\t" or character.isprintable() or ord(character) > 0x9F for character in tail)
    assert len(tail.splitlines()) <= 40


def test_tail_replaces_what_is_not_text():
    """An escape sequence cannot colour the user's terminal, bad UTF-8 is marked, other text stays."""
    assert tail_lines("\u26a1 ok\n\x1b[31mred\n".encode() + b"\xff\n\n") == "\u26a1 ok\n\ufffd[31mred\n\ufffd"
