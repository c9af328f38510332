"""Runs `.pte` files, fat and plain, in Python: wherever ExecuTorch's wheel is, no library of ours and no compiler."""

from __future__ import annotations

from .host import LoadedProgram, load

__all__ = ["LoadedProgram", "load"]
