"""What workers read: passes that are wrong in different ways, of each of the kinds that ExecuTorch knows."""

from __future__ import annotations

import torch
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult, ExportPass
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

ADD, SUBTRACT = ops.edge.aten.add.Tensor, ops.edge.aten.sub.Tensor


class Subtraction(ExportPass):
    """Subtracts where the model adds, and says of which node."""

    def call_operator(self, op, args, kwargs, meta):
        """Called for each operator."""
        return super().call_operator(SUBTRACT if op == ADD else op, args, kwargs, meta)


class ForgetfulSubtraction:
    """Subtracts where the model adds, and does not say what the new node was made from."""

    def __call__(self, module: GraphModule) -> PassResult:
        """Changes the graph in place."""
        for node in list(module.graph.nodes):
            if node.target == ADD:
                with module.graph.inserting_after(node):
                    made = module.graph.call_function(SUBTRACT, node.args)
                made.meta = {"val": node.meta["val"]}
                node.replace_all_uses_with(made)
                module.graph.erase_node(node)
        return PassResult(module, modified=True)


class ScaledWeight(ExportedProgramPassBase):
    """Makes the weight of the second convolution half as large again."""

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """Changes the state."""
        name = "second.weight"
        scaled = torch.nn.Parameter(exported_program.state_dict[name] * 1.5)
        exported_program.state_dict[name] = scaled
        return ExportedProgramPassResult(exported_program, modified=True)
