"""Saving and loading of `torch.export.ExportedProgram`s of every stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.export import ExportedProgram

from ..ref import ArtifactRef

if TYPE_CHECKING:
    from ..local_store import LocalStore


def save_program(program: ExportedProgram, *, kind: str, store: LocalStore) -> ArtifactRef:
    """Stores a program as a composite artifact, weights as blobs of their own; its identity is canonical."""
    raise NotImplementedError


def load_program(ref: ArtifactRef, store: LocalStore) -> ExportedProgram:
    """Loads a program. Unpickles: only for refs that come from a trusted ledger."""
    raise NotImplementedError
