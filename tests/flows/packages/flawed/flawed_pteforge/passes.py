"""The part that workers load: wrong passes of each kind that ExecuTorch has."""

from __future__ import annotations

import torch
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult, ExportPass
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

ADD, SUBTRACT = ops.edge.aten.add.Tensor, ops.edge.aten.sub.Tensor


class Subtraction(ExportPass):
    """Subtracts instead of adding, and keeps the origin of the node."""

    def call_operator(self, op, args, kwargs, meta):
        return super().call_operator(SUBTRACT if op == ADD else op, args, kwargs, meta)


class ForgetfulSubtraction:
    """Subtracts instead of adding, and drops the origin of the node."""

    def __call__(self, module: GraphModule) -> PassResult:
        for node in list(module.graph.nodes):
            if node.target == ADD:
                with module.graph.inserting_after(node):
                    made = module.graph.call_function(SUBTRACT, node.args)
                made.meta = {"val": node.meta["val"]}
                node.replace_all_uses_with(made)
                module.graph.erase_node(node)
        return PassResult(module, modified=True)


class ScaledWeight(ExportedProgramPassBase):
    """Multiplies the weight of the second convolution by 1.5."""

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        name = "second.weight"
        scaled = torch.nn.Parameter(exported_program.state_dict[name] * 1.5)
        exported_program.state_dict[name] = scaled
        return ExportedProgramPassResult(exported_program, modified=True)
