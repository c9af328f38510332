"""Runs what a stage does to a program on the program, or on its graph alone."""

from __future__ import annotations

from collections.abc import Callable

from torch.export import ExportedProgram

from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef
from ...errors import StoreError, first_line
from ..codecs.binding import REFUSED, is_graph
from ..codecs.program import load_graph, load_program, save_graph, save_program
from ..upstream.torch_lowering import WeightRead, no_weight_reads


def transformed(
    ref: ArtifactRef, transform: Callable[[ExportedProgram], ExportedProgram], *, kind: str, store: LocalStore
) -> tuple[ExportedProgram | None, ArtifactRef]:
    """Loads a program, transforms it, and stores the result as a program of a kind; of a graph, as a graph.

    What fails on a graph may do with the weights, and if not its error will be the better one. So in place of a graph
    there may be a text of the kind `REFUSED`, with the reason; there is no program then.
    """
    if not is_graph(ref):
        program = transform(load_program(ref, store))
        return program, save_program(program, kind=kind, store=store)
    try:
        program, absent = load_graph(ref, store)
        with no_weight_reads(absent):
            program = transform(program)
        return program, save_graph(program, absent, kind=kind, store=store)
    except (MemoryError, OSError, StoreError):  # the machine's, and gone the next time
        raise
    except (Exception, WeightRead) as error:  # noqa: BLE001 - see above
        return None, store.put_artifact(REFUSED, f"{type(error).__name__}: {first_line(error)}".encode())
