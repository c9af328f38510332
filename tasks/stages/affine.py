"""torchao's operators of affine quantization, which backends know and no kernel of ExecuTorch computes."""

from __future__ import annotations

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch._inductor.decomposition import decompositions
from torch.export import ExportedProgram

from ...errors import TargetError

_NAMESPACE = "torchao"


def decompose_affine(program: ExportedProgram) -> ExportedProgram:
    """The ATen program with that arithmetic written out, so that portable kernels can run it.

    The decompositions are torchao's own; it registers them for torch.compile (torchao/utils.py).
    """
    table = {
        operator: function
        for operator, function in decompositions.items()
        if isinstance(operator, torch._ops.OpOverload) and operator.namespace == _NAMESPACE  # noqa: SLF001 - has no public name
    }
    return program.run_decompositions(table)


def check_no_affine(method: str, program: ExportedProgram) -> None:
    """Checks that backends took all of those operators of an edge program; TargetError where some are left."""
    targets = [node.target for node in program.graph.nodes if isinstance(node.target, EdgeOpOverload)]
    if left := sorted({str(target._op) for target in targets if target.namespace == _NAMESPACE}):  # noqa: SLF001 - names the operator as users know it
        raise TargetError(
            f"method {method!r}: no backend took all of {', '.join(left)}, and ExecuTorch has no kernels for them; "
            "quantize those layers in a way that the target knows, or leave them out of source_transforms"
        )
