"""XNNPACK's layout pass of executorch 1.5.1 mistakes what is quantized statically, in three ways, and softmax.

- Where a dequantized value is used in both layouts, `insert_copy_q_dq` (backends/xnnpack/_passes/
  channels_last_tagged_reshape_pass.py) gives the copy to all users, also to those that the pass has seen before and to
  those that take the other layout. A convolution whose output goes to ``avg_pool2d`` and to an output of the model is
  enough: the file fails (0x10), or computes something else where the sizes are equal. Here, such users keep the value.
- It copies the node that dequantizes without its dtype: half-precision outputs of convolutions become float32, and the
  delegate writes beyond the memory that they have. Here, it keeps its dtype.
- Of inputs that it quantizes, it looks for the layout of the first row. Scalars have none (IndexError), and rows of
  what is channels-last are not, so that the file computes something else. Here, it looks at the whole tensor.
- It lets softmax take any layout, although it is computed over the last dimension, which is the channels' after a
  convolution: ``softmax(conv(x), -1)`` is wrong in floating point, too. Here, softmax takes the usual layout.

Files that worked stay the same. Delete each once upstream replaces the input of one node only, passes ``out_dtype`` on,
looks at the whole tensor, and has ``_softmax`` in `memory_sensitive_ops_nchw`.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import (
    ChannelsLastTaggedReshapePass as _Pass,
)
from executorch.backends.xnnpack.utils.quant_utils import is_dequant
from executorch.exir.dialects._ops import ops
from torch.fx import GraphModule, Node

_insert = _Pass.insert_copy_q_dq
_is_nhwc, _is_nchw = _Pass.is_nhwc_node, _Pass.is_nchw_node


@wraps(_insert)
def _insert_for_its_users(
    layouts: Any, module: GraphModule, before: Node, after: Node, copy: Node, q_params: Any
) -> None:
    takers = [user for user in before.users if user is not copy and _takes(layouts, user, after, copy)]
    if len(takers) + 1 < len(before.users):
        with module.graph.inserting_after(before):
            own = module.graph.node_copy(before)
        for user in (*takers, copy):
            user.replace_input_with(before, own)
        before = own
    _insert(layouts, module, before, after, copy, q_params)
    (quantize,) = copy.users
    (dequantize,) = quantize.users
    dequantize.kwargs = before.kwargs


def _takes(layouts: Any, user: Node, target: Node, copy: Node) -> bool:
    """Whether a user of a value takes the copy that is made for the target, or the value itself."""
    if user is target:
        return True
    if copy.kwargs["memory_format"] != torch.channels_last:
        needs_other = layouts.requires_nhwc_input(user)
    else:
        needs_other = user.op == "output" or layouts.requires_nchw_inputs(user)
    return user > target and not needs_other


def _is_channels_last(node: Node) -> bool:
    value: Any = node.args[0].args[0] if is_dequant(node) and node.args[0].args else None
    if isinstance(value, Node) and value.op == "placeholder":
        return bool(_Pass._is_nhwc_tensor(value.meta["val"]))  # noqa: SLF001 - upstream's own name
    return bool(_is_nhwc(node))


_usual_layout = _Pass.memory_sensitive_ops_nchw
_MENDED = {
    "memory_sensitive_ops_nchw": {*_usual_layout, ops.edge.aten._softmax.default},  # noqa: SLF001 - the operator's name
    "insert_copy_q_dq": _insert_for_its_users,
    "is_nhwc_node": staticmethod(_is_channels_last),
    "is_nchw_node": staticmethod(lambda node: not _is_channels_last(node)),
}


def mend_static_layouts() -> None:
    """Applies the patch, for the rest of the process. Idempotent."""
    for name, value in _MENDED.items():
        setattr(_Pass, name, value)
