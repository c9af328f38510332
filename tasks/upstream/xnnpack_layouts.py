"""XNNPACK's layout pass of executorch 1.5.1 mistakes what is quantized dynamically; with this patch it does not.

Convolutions take channels last, linear layers do not. The pass (`ChannelsLastTaggedReshapePass` in backends/xnnpack/
_passes/channels_last_tagged_reshape_pass.py) puts copies in the other layout before them. Where an input is quantized
dynamically, it fails in two ways:

- `input_to_nhwc` goes back to the value that is quantized, and does not stop at it: it goes on along first arguments to
  an input of the partition. It makes that channels last for all that uses it, without saying so of the operators in
  between. So a ``pad`` pads the wrong dimensions ("Propagating input shapes failed" when the file runs), and others
  compute with values in two layouts.
- `input_to_nchw` copies what has been dequantized, so that a linear layer's input is not quantized any more ("Weight
  and Input should both be quantized").

Here, the value that is quantized is copied, and for this quantization alone. Where that is an input of the partition or
has the right layout, files that worked stay the same. Delete once upstream stops at the value, and leaves its other
users as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from types import MappingProxyType
from typing import Any

import torch
from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import (
    ChannelsLastTaggedReshapePass as _Pass,
)
from executorch.backends.xnnpack.utils.quant_utils import is_dynamic_qdq
from executorch.exir.dialects._ops import ops
from torch.fx import GraphModule, Node

_to_nhwc = _Pass.input_to_nhwc
_to_nchw = _Pass.input_to_nchw
_COPY = ops.edge.aten._to_copy.default  # noqa: SLF001 - the operator's name


def _mended(
    upstream: Callable[..., None],
    memory_format: torch.memory_format,
    has_layout: Callable[[Node], bool],
    takes_layout: Callable[[Any, Node], bool],
) -> Callable[..., None]:
    """A method of the pass that gives an operator an input in a layout, and does not mistake what is quantized.

    Args:
        upstream: the method.
        memory_format: the layout.
        has_layout: whether a value has it already.
        takes_layout: whether an operator needs its input in it.
    """

    @wraps(upstream)
    def mended(layouts: Any, module: GraphModule, given: Node, target: Node) -> None:
        value = _quantized_value(given)
        if value is given:
            upstream(layouts, module, given, target)
        elif not has_layout(value):
            copy = _copy(layouts, module, value, memory_format)
            _quantize_from(copy, value, given, target, partial(takes_layout, layouts))

    return mended


def _quantized_value(node: Node) -> Any:
    """The value whose quantization a node is the end of; the node itself where it is not quantized dynamically."""
    while is_dynamic_qdq(node):
        node = node.args[0]
    return node


def _copy(layouts: Any, module: GraphModule, value: Node, memory_format: torch.memory_format) -> Node:
    """The value in the other layout; the copy that there is, if the pass has made one."""
    copy: Node | None = value.meta.get(layouts.PARTNER_NODE)
    if copy is None:
        with module.graph.inserting_after(value):
            copy = layouts.create_call_function_node(module, _COPY, (value,), memory_format=memory_format)
        layouts.tag_node(copy)
        layouts.make_partners(value, copy)
    return copy


def _quantize_from(copy: Node, value: Node, given: Node, target: Node, takes_copy: Callable[[Node], bool]) -> None:
    """Has an operator's input quantized from a copy of the value, by operators of its own if others need the value."""
    quantize: Any = given.args[0]
    if all(takes_copy(user) for _, user in users_of(quantize)):
        for node in quantizing(quantize):
            node.replace_input_with(value, copy)
        return
    copies = copy_quantization(quantize, [given], target, {value: copy})
    target.replace_input_with(given, copies[given])
    if not given.users:
        given.graph.erase_node(given)


def users_of(quantize: Node) -> Iterator[tuple[Node, Node]]:
    """What takes a quantized value, each with the node that dequantizes it."""
    for dequantize in quantize.users:
        for user in dequantize.users:
            yield dequantize, user


def quantizing(quantize: Node) -> list[Node]:
    """What quantizes a value dynamically: the choice of scale and zero point, both, and the node that uses them."""
    parameters = [node for node in quantize.all_input_nodes if node is not quantize.args[0]]
    return [parameters[0].all_input_nodes[0], *parameters, quantize]


def copy_quantization(
    quantize: Node, dequantized: Iterable[Node], before: Node, inputs: Mapping[Node, Node] = MappingProxyType({})
) -> Mapping[Node, Node]:
    """Copies of the nodes that quantize a value, and of some that dequantize it, in front of a node; by node.

    `inputs` has what the copies take in place of something else.
    """
    copies = dict(inputs)
    with before.graph.inserting_before(before):
        for node in (*quantizing(quantize), *dequantized):
            copies[node] = before.graph.node_copy(node, lambda argument: copies.get(argument, argument))
    return copies


_MENDED = {
    "input_to_nhwc": _mended(_to_nhwc, torch.channels_last, _Pass.is_nhwc_node, _Pass.requires_nhwc_input),
    "input_to_nchw": _mended(_to_nchw, torch.contiguous_format, _Pass.is_nchw_node, _Pass.requires_nchw_inputs),
}


def mend_dynamic_layouts() -> None:
    """Applies the patch, for the rest of the process. Idempotent."""
    for name, method in _MENDED.items():
        setattr(_Pass, name, method)
