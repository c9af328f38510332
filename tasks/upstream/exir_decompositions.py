"""Exir 1.5.1 traces programs for decomposition tables that do not apply to them; with this patch it does not.

For partitioners that check support, `_gen_edge_manager_for_partitioners` (exir/program/_program.py) decomposes with
every table it has, each a trace of the whole program. For others it first looks whether the graph has any operator of
the table. Delete once it always looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from executorch.exir.graph_module import contains_any_call_fn_target_op
from torch.export import ExportedProgram

from .attention_views import reshape_views


@contextmanager
def no_idle_decompositions() -> Iterator[None]:
    """Skips traces whose table has no operator of the program. The empty table stays: it functionalizes.

    Others may decompose attention: see `attention_views`.
    """
    trace = ExportedProgram.run_decompositions

    def run_decompositions(program: ExportedProgram, decomp_table: Any = None, **options: Any) -> ExportedProgram:
        if decomp_table and not contains_any_call_fn_target_op(program.graph_module, decomp_table):
            return program
        if decomp_table:
            reshape_views(program)
        return trace(program, decomp_table, **options)

    ExportedProgram.run_decompositions = run_decompositions
    try:
        yield
    finally:
        ExportedProgram.run_decompositions = trace
