"""Groups of weights that XNNPACK's partitioner claims and its serialization then refuses, told in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_GROUP = 32
"""What sizes of groups must be multiples of (executorch/backends/xnnpack/operators/node_visitor.py, 1.5.1)."""


def refused_groups(program: ExportedProgram) -> str | None:
    """Which layers quantized by torchao have groups of weights that XNNPACK refuses; None where none has.

    A layer with one scale per output channel is a group per row: its size is that of the layer's input.

    Args:
        program: an Edge program, before it is partitioned.
    """
    names = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    refused = []
    for node in program.graph.nodes:
        if node.op != "call_function" or "linear" not in str(node.target):
            continue
        activation, weight = node.args[:2]
        if _is_dequantized(activation) and _is_dequantized(weight) and weight.args[1][-1] % _GROUP:
            stored = weight.args[0].name
            layer = names.get(stored, stored).partition("parametrizations.")[0].rstrip(".")
            refused.append(f"{layer!r} ({weight.args[1][-1]})")
    if not refused:
        return None
    return (
        f"XNNPACK takes groups of weights by multiples of {_GROUP}, and these layers have other ones: "
        f"{', '.join(refused)}; a scale per output channel makes one group of each row; "
        "leave the layers out with `exclude`"
    )


def _is_dequantized(node: object) -> bool:
    return "torchao.dequantize_affine" in str(getattr(node, "target", ""))
