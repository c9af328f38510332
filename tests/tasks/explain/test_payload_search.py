"""Operators of a payload that compute something wrong are found inside of delegates, and outside of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import EdgeCompileConfig, EdgeProgramManager
from executorch.exir.dialects._ops import ops
from pteforge.artifacts.local_store import LocalStore
from pteforge.configs.recipe import CompileOptions
from pteforge.tasks.backend import emission
from pteforge.tasks.backend.delegates import link_delegates, preprocess_all
from pteforge.tasks.backend.exir import to_edge_program, to_partitioned_program
from pteforge.tasks.explain.payload_search import PartLowering, PayloadSearch, copy_program
from pteforge.tasks.quantize import pt2e
from pteforge.tasks.targets import TargetParams
from pteforge.tasks.targets.find import find_target
from pteforge.tasks.verify.running import ExpectedCall, Loadable
from pteforge.tests.zoo.networks import Function
from torch import nn

pytestmark = pytest.mark.slow

TANH, SIGMOID = ops.edge.aten.tanh.default, ops.edge.aten.sigmoid.default


@pytest.fixture
def search(tmp_path):
    """Lowers a module as XNNPACK's recipes do, and searches its payload."""

    def run(module: nn.Module, x: torch.Tensor, *, static: bool = False, lowerings: int = 100, **bounds: float) -> Any:
        program = torch.export.export(module.eval(), (x,))
        if static:
            program, *_ = pt2e.quantize(program, [x], [[x]], (TargetParams(name="xnnpack", options={}),))
        partitioners = find_target("xnnpack", {}).partitioners()
        program = to_edge_program(program, partitioners, EdgeCompileConfig())
        program = to_partitioned_program(program, partitioners)
        payload = payload_of(copy_program(program), tmp_path)

        def run_payload(flat):
            (outputs,) = payload.run([ExpectedCall("forward", flat, (), "")])
            return outputs

        limits = {"least_db": 84, "drop_db": 6} | bounds
        return PayloadSearch(program, [[x]], PartLowering(tmp_path, lowerings), **limits).losses(run_payload)

    return run


def payload_of(program: Any, folder: Path) -> Loadable:
    delegates = preprocess_all({"forward": program}, LocalStore.open(folder / "store"))
    link_delegates(program, delegates["forward"], external=False)
    manager = EdgeProgramManager({"forward": program}, None, EdgeCompileConfig(_check_ir_validity=False))
    made = emission.to_executorch(manager, emission.backend_config(CompileOptions(), ["forward"]))
    path = folder / "payload.pte"
    path.write_bytes(bytes(made.buffer))
    return Loadable(path)


@pytest.fixture
def plant(monkeypatch):
    """Has XNNPACK's backend compute tanh where a delegate has sigmoid, if a condition on its graph holds."""
    upstream = XnnpackBackend.preprocess

    def with_condition(holds):
        def preprocess(edge_program, compile_specs):
            if holds({node.target for node in edge_program.graph.nodes}):
                for node in edge_program.graph.find_nodes(op="call_function", target=SIGMOID):
                    node.target = TANH
            return upstream(edge_program, compile_specs)

        monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(preprocess))

    return with_condition


class Stretches(nn.Module):
    """Three delegates: `cumsum` is left to the portable kernels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.first(x) * 2).cumsum(1)
        x = torch.relu(self.second(x) + 1).cumsum(1)
        return torch.sigmoid(self.third(x / 50) - 1)


def operators(part):
    return [operator.operator for operator in part.operators]


def test_two_delegates(search, plant):
    """Both delegates with the wrong operator are named, and nothing but that operator in each."""
    plant(bool)
    found = search(Stretches(), torch.randn(2, 16))
    assert [delegate.position for delegate in sorted(found.losing, key=lambda loss: loss.position)] == [0, 2]
    assert [operators(part) for _, part in found.parts] == [["aten.sigmoid.default"]] * 2
    operator = found.parts[0][1].operators[0]
    assert (operator.inputs, operator.output) == (("float32 [2, 16]",), "float32 [2, 16]")
    assert operator.line.startswith("test_payload_search.py:")
    assert all(part.own.sqnr_db < 20 for _, part in found.parts)
    assert found.conclusion.startswith("It is lost in 2 of 3 delegates")


def test_only_together(search, plant):
    """Where an operator is wrong only in company of another one, both are in the part, and little else."""
    plant(lambda operators: {ops.edge.aten.linear.default, SIGMOID} <= operators)
    found = search(Stretches(), torch.randn(2, 16))
    expected = [["aten.linear.default", "aten.mul.Tensor", "aten.sigmoid.default"]]
    assert [operators(part) for _, part in found.parts if "aten.mul.Tensor" in operators(part)] == expected


def test_quantized_patterns_stay_together(search, plant):
    """Inside of a static int8 delegate, an operator is found with what quantizes its output."""
    plant(bool)
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 4, 3), nn.ReLU()]
    found = search(nn.Sequential(*layers), torch.randn(1, 3, 12, 12), static=True, least_db=25)
    ((_, part),) = found.parts
    assert "aten.sigmoid.default" in operators(part)
    assert not any("convolution" in operator or "relu" in operator for operator in operators(part))


def test_losses_that_add_up(search, monkeypatch):
    """If each delegate loses a little and only all of them too much, none is blamed, and it says so."""
    upstream = XnnpackBackend.preprocess

    def preprocess(edge_program, compile_specs):
        for node in edge_program.graph.find_nodes(op="call_function", target=ops.edge.aten.linear.default):
            name = edge_program.graph_signature.inputs_to_parameters[node.args[1].name]
            edge_program.state_dict[name] = nn.Parameter(edge_program.state_dict[name] * 1.001)
        return upstream(edge_program, compile_specs)

    monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(preprocess))
    alone = search(Stretches(), torch.randn(2, 16), least_db=0, drop_db=0.01)
    figures = [delegate.passed_on.sqnr_db for delegate in alone.delegates]
    assert alone.together.sqnr_db < min(figures)
    assert (alone.losing, alone.outside, alone.searched_outside) == ((), (), False)
    assert "adds up" in alone.conclusion


def test_outside_of_delegates(search, monkeypatch):
    """A kernel that computes something else than torch is found if the delegates are right."""
    monkeypatch.setattr(emission, "floor_remainders", id)
    module = Function(lambda x: torch.relu(x + 1) * (x.to(torch.int64) % 5).cumsum(1))  # the latter is outside
    found = search(module, torch.randn(3, 8) * 9)
    assert not found.losing
    ((where, part),) = found.parts
    assert where == "outside of delegates"
    assert any("remainder" in operator for operator in operators(part))
    assert len(part.operators) == 1
    assert found.conclusion == "It is lost outside of delegates."


def test_a_limit(search, plant):
    """A search that may not go on says so, and names the smallest part so far."""
    plant(bool)
    found = search(Stretches(), torch.randn(2, 16), lowerings=4)
    assert found.unfinished
    assert found.conclusion.endswith("the search stopped before it was done.")
    assert found.losing
