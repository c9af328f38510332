"""What a partition takes and gives, in the words of the files that are made of it."""

from __future__ import annotations

import math

import torch
from executorch.exir.sym_util import eval_upper_bound
from executorch.exir.tensor import TensorSpec as ExirTensorSpec
from torch.export import ExportedProgram
from torch.fx import Node

from ..artifacts.pte.contents import InstructionCounts, Method, TensorSpec, ValueSpec
from ..errors import PteforgeError


def signature_of(partition: ExportedProgram, method: str) -> Method:
    """A method that calls the partition, as the outer program describes it: one delegate call.

    Args:
        partition: in edge dialect.
        method: its name.

    Raises:
        PteforgeError: it takes or gives something else than tensors, or changes state.
    """
    signature = partition.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        changed = sorted({*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()})
        raise PteforgeError(
            f"a partition of method {method!r} changes {', '.join(changed)}: state has to stay outside of partitions, "
            "where all payloads and methods see the same; do not tag buffers that are mutated"
        )
    placeholders = {node.name: node for node in partition.graph.nodes if node.op == "placeholder"}
    inputs = [_spec(placeholders.get(name), f"input {name!r}", method) for name in signature.user_inputs]
    outputs = [
        _spec(node, f"output {position}", method) for position, node in enumerate(partition.graph.output_node().args[0])
    ]
    return Method(
        name=method,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        operators=(),
        operator_calls=(),
        delegates=(),
        planned_memory=(),
        instructions=InstructionCounts(delegate_calls=1),
    )


def _spec(node: Node | None, what: str, method: str) -> ValueSpec:
    """As ExecuTorch describes the value when it plans memory for it."""
    value = node.meta.get("val") if node is not None else None
    if not isinstance(value, torch.Tensor):
        raise PteforgeError(
            f"{what} of a partition of method {method!r} is no tensor: only tensors can cross the border of a partition"
        )
    spec = ExirTensorSpec.from_tensor(value)
    shape = tuple(map(eval_upper_bound, value.shape))
    return TensorSpec(
        dtype=str(value.dtype).removeprefix("torch."),
        shape=shape,
        dim_order=tuple(map(int, spec.dim_order)),
        dynamism="bound" if spec.is_upper_bound_tensor else "unbound" if spec.is_dynamic_unbound_tensor else "static",
        nbytes=math.prod(shape) * value.element_size(),
    )
