"""Functions that recipes of `executorch.export` hold, for tests."""

from collections.abc import Iterator

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportPass, PassResult
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import ObserverBase

_RELU = torch.ops.aten.relu.default


def _replaced(module: GraphModule, activation: str) -> GraphModule:
    for node in module.graph.find_nodes(op="call_function", target=_RELU):
        node.target = getattr(torch.ops.aten, activation).default
    module.recompile()
    return module


def sigmoid_for_relu(module: GraphModule) -> GraphModule:
    """Before observers enter, so that quantizers see another operator."""
    return _replaced(module, "sigmoid")


def tanh_for_relu(module: GraphModule, activation: str = "tanh") -> GraphModule:
    """When quantizers have annotated the operator."""
    return _replaced(module, activation)


def widen(module: GraphModule, by: float = 2.0) -> GraphModule:
    """Makes the ranges wider that observers have seen, and so the scales larger."""
    for observer in module.modules():
        if isinstance(observer, ObserverBase) and hasattr(observer, "min_val"):
            observer.min_val.mul_(by)
            observer.max_val.mul_(by)
    return module


def see_a_large_value(module: GraphModule) -> GraphModule:
    """Shows observers a value that no sample has."""
    for observer in module.modules():
        if isinstance(observer, ObserverBase):
            observer(torch.linspace(-30, 30, 32)[None])
    return module


def halve_the_bias(module: GraphModule) -> GraphModule:
    """Changes what is left in floating point."""
    for name, value in module.named_parameters():
        if name.endswith("bias"):
            value.data.mul_(0.5)
    return module


def train(module: GraphModule) -> None:
    """Training of a few steps, as `train_fn` of a recipe."""
    torch.manual_seed(0)
    for _ in range(2):
        module(torch.randn(2, 32))


def tanh_of_method(_name: str, program: ExportedProgram) -> ExportedProgram:
    """A function over an ATen program, like those of `aten_transform_passes`."""
    _replaced(program.graph_module, "tanh")
    return program


def before_last(node: Node) -> bool:
    """Chooses the nodes of a graph that others use, for `set_filter_function`."""
    return all(user.op != "output" for user in node.users)


def relu_to_sigmoid(module: GraphModule) -> PassResult:
    """A pass that is a function, for `passes` of an ExecutorchBackendConfig."""
    nodes = module.graph.find_nodes(op="call_function", target=ops.edge.aten.relu.default)
    for node in nodes:
        node.target = ops.edge.aten.sigmoid.default
    module.recompile()
    return PassResult(module, bool(nodes))


class Activation(ExportPass):
    """A pass with an argument: replaces relu."""

    def __init__(self, activation: str = "sigmoid") -> None:
        super().__init__()
        self.activation = activation

    def call_operator(self, op, args, kwargs, meta):
        if op is ops.edge.aten.relu.default:
            op = getattr(ops.edge.aten, self.activation).default
        return super().call_operator(op, args, kwargs, meta)


class Next(ExportPass):
    """Replaces relu by sigmoid, sigmoid by tanh and tanh by exp, so that the result counts how often it ran."""

    ORDER = tuple(getattr(ops.edge.aten, name).default for name in ("relu", "sigmoid", "tanh", "exp"))

    def call_operator(self, op, args, kwargs, meta):
        after = dict(zip(self.ORDER, self.ORDER[1:], strict=False))
        return super().call_operator(after.get(op, op), args, kwargs, meta)


def next_of_method(_name: str, _program: ExportedProgram) -> list[ExportPass]:
    """Passes for a method and its program, like a function of `edge_transform_passes`."""
    return [Next()]


def without_a_result(module: GraphModule) -> None:
    module.recompile()


def only_first(module: nn.Module, name: str) -> bool:
    """Chooses one layer of several."""
    return isinstance(module, nn.Linear) and name.endswith("0")


def every_module(_module: nn.Module, _name: str) -> bool:
    return True


def raises(_module: nn.Module, _name: str) -> bool:
    raise RuntimeError("no layer pleases me")


def manager_passes(manager: EdgeProgramManager, methods: tuple[str, ...] = ("forward",)) -> list[ExportPass]:
    """Passes for all methods, given their manager."""
    return [Next()] if manager.methods == set(methods) else []


def passes_of_the_last(manager: EdgeProgramManager) -> dict[str, list[ExportPass]]:
    return {max(manager.methods): [Next()]}


def passes_of_no_method(_manager: EdgeProgramManager) -> dict[str, list[ExportPass]]:
    return {"nowhere": []}


def no_passes(_manager: EdgeProgramManager) -> int:
    return 3


def large_samples() -> Iterator[tuple[torch.Tensor]]:
    """Calibration samples with larger values than those of examples."""
    for scale in (4.0, 9.0):
        yield (torch.linspace(-scale, scale, 64).reshape(2, 32),)


def batches() -> Iterator[tuple[torch.Tensor]]:
    """Calibration samples of several batch sizes."""
    for size in (1, 5):
        yield (torch.linspace(-6, 6, 32 * size).reshape(size, 32),)
