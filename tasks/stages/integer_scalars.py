"""Integer arithmetic with numbers written in code, kept out of the way of quantizers.

Some quantizers of executorch 1.5.1, XNNPACK's for one, make a float tensor of every number that is added or multiplied
(`_convert_scalars_to_attrs`), also of those added to integers: positions and indices become floats, and the program no
longer runs. While a program is quantized, such numbers are integer tensors, which they leave alone.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule

_OPERATORS = (torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor)
_PREFIX = "_integer_scalar_"


def hide_integer_scalars(module: GraphModule) -> None:
    """Puts tensors in the place of numbers that are added to integers, or multiplied with them."""
    hidden = 0
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in _OPERATORS or node.meta["val"].is_floating_point():
            continue
        for number in [each for each in node.args if isinstance(each, int)]:
            name = f"{_PREFIX}{hidden}"
            hidden += 1
            value = torch.tensor(number)
            module.register_buffer(name, value)
            with module.graph.inserting_before(node):
                constant = module.graph.get_attr(name)
            constant.meta["val"] = node.meta["val"].fake_mode.from_tensor(value, static_shapes=True)
            node.args = tuple(constant if each is number else each for each in node.args)
    module.recompile()


def show_integer_scalars(module: GraphModule) -> None:
    """Puts the numbers back."""
    for node in list(module.graph.nodes):
        if node.op != "get_attr" or not str(node.target).startswith(_PREFIX):
            continue
        number = module.get_buffer(str(node.target)).item()
        for user in list(node.users):
            user.args = tuple(number if each is node else each for each in user.args)
        module.graph.erase_node(node)
        delattr(module, str(node.target))
    module.recompile()
