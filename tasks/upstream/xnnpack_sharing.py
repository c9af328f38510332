"""XNNPACK computes something else where two kinds of layers share an input that is quantized dynamically.

For linear layers, and for convolutions that are products of matrices (with kernels of one element, and without stride,
padding or groups), XNNPACK of executorch 1.5.1 seems to have the input quantized in another way than for other
convolutions, on Arm (seen on QEMU's cortex-a53, cortex-a76 and max without SME) and on x86-64 with VNNI; on x86-64
without, it does not. Where both share one quantization, outputs come out at 2 to 10 dB, without an error. Here, those
layers have one of their own. Delete once `test_executorch_fails_by_itself` of its tests fails on such a machine.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import (
    ChannelsLastTaggedReshapePass as _Pass,
)
from executorch.backends.xnnpack.utils.quant_utils import is_dynamic_qdq
from executorch.exir.dialects._ops import ops
from torch.fx import Graph, GraphModule, Node

from .xnnpack_layouts import copy_quantization, users_of

_upstream = _Pass.call
_CONVOLUTION = ops.edge.aten.convolution.default
_LINEAR = ops.edge.aten.linear.default


@wraps(_upstream)
def _separated(layouts: Any, module: GraphModule) -> Any:
    """In place of the pass that gives operators the layouts they need: no later one changes what quantizes inputs."""
    result = _upstream(layouts, module)
    if _separate_products(result.graph_module.graph):
        result.graph_module.recompile()
    return result


def _separate_products(graph: Graph) -> bool:
    """Gives products quantizations of their own where others need the same; returns whether there were any."""
    found = False
    for quantize in [node for node in graph.nodes if is_dynamic_qdq(node) and not is_dynamic_qdq(node.args[0])]:
        users = list(users_of(quantize))
        products = [(dequantize, user) for dequantize, user in users if _is_product(user)]
        if products and len(products) < len(users):
            _quantize_apart(quantize, products)
            found = True
    return found


def _is_product(node: Node) -> bool:
    if node.target is not _CONVOLUTION:
        return node.target is _LINEAR
    weight: Any = node.args[1]
    _, _, _, stride, padding, _, transposed, _, groups = node.args
    kernel = weight.meta["val"].shape[2:]
    return not transposed and groups == 1 and {*kernel, *stride} == {1} and set(padding) == {0}


def _quantize_apart(quantize: Node, takers: list[tuple[Node, Node]]) -> None:
    """Has these operators take the value from copies of the nodes that quantize it."""
    copies = copy_quantization(quantize, dict.fromkeys(dequantize for dequantize, _ in takers), quantize.next)
    for dequantize, user in takers:
        user.replace_input_with(dequantize, copies[dequantize])
    for dequantize in list(quantize.users):
        if not dequantize.users:
            quantize.graph.erase_node(dequantize)


def separate_products() -> None:
    """Applies the patch, for the rest of the process. Idempotent."""
    _Pass.call = _separated
