"""Text from files, made safe for terminals: a name in a file must not move the cursor or hide what follows."""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with every character that does not show as itself escaped, as in ``\x1b``; those in `keep` stay."""
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )
