"""Views of what attention returns: torch 2.13's decomposition returns it in another layout, and the views fail.

``scaled_dot_product_attention`` returns heads and tokens in the layout of its inputs. Its decomposition
(torch/_decomp/decompositions.py) does so only for the kernels that it stands for, so that a program that was exported
with ``view``, as eager code may well say, cannot be decomposed: "Cannot view a tensor with shape ...". With ``reshape``
in place of ``view`` it can; where the layout is right, reshaping is a view again and the decomposed program is the
same. Delete once the decomposition keeps the layout.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_VIEW, _RESHAPE = torch.ops.aten.view.default, torch.ops.aten.reshape.default


def reshape_views(program: ExportedProgram) -> None:
    """Replaces views by reshapes, in place, in programs and submodules that have attention."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            views = module.graph.find_nodes(op="call_function", target=_VIEW)
            if views and module.graph.find_nodes(op="call_function", target=_ATTENTION):
                for view in views:
                    view.target = _RESHAPE
                module.recompile()
