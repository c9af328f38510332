"""The canonical digest of a program: equal for programs that lower alike."""

from __future__ import annotations

from torch.export import ExportedProgram

from ..digest import Digest


def program_digest(program: ExportedProgram) -> Digest:
    """SHA-256 of everything in the program that matters for lowering."""
    raise NotImplementedError
