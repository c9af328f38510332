"""Saying what went wrong in the user's code, and where."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from ...errors import SourceError

_OWN_CODE = Path(__file__).parents[1]


def failed(what: str, error: Exception) -> SourceError:
    """The error to raise for one that came out of the user's code.

    Args:
        what: the code, such as ``builder nets:small``.
        error: what it raised.
    """
    return SourceError(f"{what} failed: {type(error).__name__}: {error}{_where(error)}")


def _where(error: Exception) -> str:
    """The last line of the user's own code that the exception came from, if it came from any: `` (nets.py:12)``."""
    not_theirs = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, str(_OWN_CODE), "<")
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(Path(each.filename), each.lineno) for each in frames if not each.filename.startswith(not_theirs)]
    if not lines:
        return ""
    path, number = lines[-1]
    return f" ({path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{number})"
