"""Exported programs, delegates and values as artifacts. Imports torch: only stage processes import this package."""

from .canonical_program import program_digest
from .codec import load_program, save_program
from .delegates import DelegateResult, Delegates, load_delegates, save_delegates
from .values import load_value, save_value

__all__ = [
    "DelegateResult",
    "Delegates",
    "load_delegates",
    "load_program",
    "load_value",
    "program_digest",
    "save_delegates",
    "save_program",
    "save_value",
]
