"""One partition as a payload: a complete `.pte` of one method, for one specialization or for the fallback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

import executorch.kernels.quantized  # noqa: F401 - the forms of quantized operators that files name
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram

from ..artifacts.nfat.contents import Description
from ..artifacts.pte.contents import Method
from ..artifacts.pte.reader import read_pte
from ..configs.compile_options import CompileOptions
from ..errors import PteforgeError
from ..runtime.signature import signature_mismatch
from ..tasks.params import CompileParams, EdgeParams
from ..tasks.stages.affine import check_no_affine, decompose_affine
from ..tasks.stages.backend_config import backend_config
from ..tasks.stages.delivery import check_file
from ..tasks.targets.base import Target
from .aten import to_aten
from .outside_branches import for_program
from .refusal import refusing
from .settings import FALLBACK, Resolved
from .support import is_affine

Payload = tuple[Description, bytes]

# Inputs and outputs are the outer program's: the delegate binds its memory, and nothing is copied.
_COMPILE = CompileParams(options=CompileOptions(alloc_graph_input=False, alloc_graph_output=False), edge=EdgeParams())


def make_fallback(partition: ExportedProgram, signature: Method) -> Payload:
    """The payload that needs no backend; arguments and errors as in `make_payload`."""
    return _checked(FALLBACK, (), signature, _lower(partition, signature.name, None))


def make_payload(resolved: Resolved, partition: ExportedProgram, signature: Method) -> Payload | None:
    """The payload of a specialization; None where its target takes nothing of the partition.

    Args:
        resolved: what to lower it for.
        partition: in edge dialect.
        signature: of the partition. The payload's method is called as it is: as the method that the partition is a part
            of, since that is the name for which a delegate looks.

    Raises:
        PteforgeError: the payload needs a backend that the target does not name, or has another signature.
    """
    content = _lower(partition, signature.name, resolved.target)
    payload = _checked(resolved.specialization.payload, resolved.target.backends, signature, content)
    return payload if payload[0].backends else None


def _lower(partition: ExportedProgram, method: str, target: Target | None) -> bytes:
    program = to_aten(partition)
    partitioners = refusing(target.partitioners(), target) if target else []
    passes = list(target.edge_passes()) if target else []
    if not partitioners and is_affine(program):
        program = decompose_affine(program)
    with _no_pending_symbols(program):
        lowered = to_edge_transform_and_lower(
            {method: program},
            transform_passes=passes or None,  # none is not the same as an empty list, which is one more trace
            partitioner={method: for_program(partitioners, program)},
            compile_config=EdgeCompileConfig(_check_ir_validity=False),  # what is in the partition was checked outside
        )
        check_no_affine(method, lowered.exported_program(method))
        content: bytes = lowered.to_executorch(backend_config(_COMPILE, [method])).buffer
    return content


@contextmanager
def _no_pending_symbols(program: ExportedProgram) -> Iterator[None]:
    """Puts sizes aside that come out of data elsewhere in the model: they are none of the partition's.

    Passes of exir leave such symbols in the shape environment that all partitions share, where tracing (torch 2.13,
    `compute_unbacked_bindings`) takes them for its own.
    """
    mode = detect_fake_mode([node.meta.get("val") for node in program.graph.nodes])
    pending = mode.shape_env.pending_fresh_unbacked_symbols if mode and mode.shape_env else []
    aside = list(pending)
    pending.clear()
    try:
        yield
    finally:
        pending[:] = aside


def _checked(name: str, backends: Sequence[str], signature: Method, content: bytes) -> Payload:
    pte = read_pte(content)
    check_file(pte, methods=[signature.name], backends=backends, what=f"payload {name!r}")
    (made,) = pte.methods
    if problem := signature_mismatch(signature, made):
        raise PteforgeError(
            f"payload {name!r} does not fit the partition of method {signature.name!r}: {problem}; "
            "its target must leave inputs and outputs as they are"
        )
    return Description(name, pte.backends, (signature.name,), version("executorch").partition("+")[0]), content
