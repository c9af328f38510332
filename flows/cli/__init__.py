"""The command line."""

from __future__ import annotations

from .main import main, run_command

__all__ = ["main", "run_command"]
