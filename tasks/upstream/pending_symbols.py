"""Torch 2.13 mistakes unbacked symbols of other partitions for those of a traced one; with this patch it does not.

Passes of exir (executorch 1.5.1) leave fresh unbacked symbols in the shape environment that all partitions of a model
share, and `compute_unbacked_bindings` (torch/fx/experimental/symbolic_shapes.py) takes them for symbols of the
program that is traced. Delete once exir's passes leave no symbol pending.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._guards import detect_fake_mode
from torch.export import ExportedProgram


@contextmanager
def no_pending_symbols(program: ExportedProgram) -> Iterator[None]:
    """Hides the pending symbols of other parts of the model while `program` is lowered."""
    mode = detect_fake_mode([node.meta.get("val") for node in program.graph.nodes])
    pending = mode.shape_env.pending_fresh_unbacked_symbols if mode and mode.shape_env else []
    kept = list(pending)
    pending.clear()
    try:
        yield
    finally:
        pending[:] = kept
