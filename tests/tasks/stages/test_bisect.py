"""bisect: operators of two programs are matched by what they came from, and the one that is wrong is found."""

import math
from pathlib import Path

import pytest
import torch
from pteforge.tasks.backend.stages.edge import Edge
from pteforge.tasks.explain.stages.bisect import Bisect
from pteforge.tasks.quantize.stages.quantize import Quantize
from pteforge.tasks.results.accuracy import rank_layers
from pteforge.tasks.results.numerics import NodeLosses
from pteforge.tasks.targets import TargetParams

FLOWS = Path(__file__).parents[2] / "flows"
XNNPACK = TargetParams(name="xnnpack", options={"precisions": None, "force_non_static_weights_for_f32_linear": False})


@pytest.fixture
def exported(stages, monkeypatch):
    """A network with a branch."""
    monkeypatch.syspath_prepend(FLOWS / "zoo")
    monkeypatch.syspath_prepend(FLOWS / "packages" / "flawed")
    return stages.export("residual:residual")


def edge(stages, program, **params):
    return stages.run(Edge, Edge.Params(**params), {"program": program})["program"]


def quantize(stages, exported):
    quantizer = TargetParams(name="xnnpack", options={"per_channel": True, "dynamic": False})
    inputs = {role: exported[role] for role in ("program", "examples")}
    return stages.run(Quantize, Quantize.Params(quantizers=(quantizer,)), inputs)["program"]


def losses(stages, exported, before, after, **params):
    inputs = {"before": before, "after": after, "origin": exported["program"], "examples": exported["examples"]}
    nodes = stages.run(Bisect, Bisect.Params(**params), inputs)["nodes"]
    return NodeLosses.from_json(stages.json(nodes))


def flaw(name):
    """Parameters of an edge stage with a wrong pass."""
    return {"passes_of": TargetParams(name="flawed", options={"flaw": name})}


def sqnr(node):
    """A node's own ratio, equal values as a large one."""
    return 200 if node.own.sqnr_db is None else node.own.sqnr_db


def test_right_edge_program(stages, exported):
    """Every operator of the model is compared, and none loses more than rounding."""
    found = losses(stages, exported, exported["program"], edge(stages, exported["program"]))
    assert {node.sources for node in found.nodes} == {
        (name,) for name in ("conv2d", "batch_norm", "relu", "conv2d_1", "add", "relu_1", "sum_1", "linear")
    }
    assert all(sqnr(node) > 120 for node in found.nodes)


@pytest.mark.parametrize(
    ("name", "source", "operator", "module"),
    [
        ("subtracts", "add", "aten.sub.Tensor", ""),
        ("subtracts and forgets", "add", "aten.sub.Tensor", ""),
        ("scales a weight", "conv2d_1", "aten.convolution.default", "second"),
    ],
)
def test_wrong_pass(stages, exported, name, source, operator, module):
    """A wrong pass is found: one operator loses much, named by its source, module and line; no other loses anything."""
    found = losses(stages, exported, exported["program"], edge(stages, exported["program"], **flaw(name)))
    worst, *others = found.nodes

    assert (worst.sources, worst.operator, worst.module) == ((source,), operator, module)
    file, number, _, function = worst.line.replace(":", " ").split()
    assert (file, function) == ("residual.py", "forward")
    code = (FLOWS / "zoo" / file).read_text().splitlines()[int(number) - 1]
    assert code.strip() == "total = kept + self.second(kept)"
    assert sqnr(worst) < 20
    assert all(sqnr(node) > 120 for node in others)
    after = [node for node in found.nodes if node.sources in (("relu_1",), ("sum_1",), ("linear",))]
    assert all(node.passed_on.sqnr_db < 40 for node in after)  # they are right, and get what is wrong


@pytest.mark.slow
def test_quantized_program(stages, exported):
    """Each operator's loss is its own, and what a pass does wrong afterwards is found against the quantized program."""
    quantized = quantize(stages, exported)
    found = losses(stages, exported, exported["program"], quantized)
    assert {node.sources for node in found.nodes} == {
        (name,) for name in ("image", "relu", "conv2d_1", "add", "relu_1", "sum_1", "linear")
    } | {("conv2d", "batch_norm")}
    ratios = [sqnr(node) for node in found.nodes]
    assert ratios == sorted(ratios)
    rounded, kept = found.nodes[:-2], found.nodes[-2:]
    assert all(25 < sqnr(node) < 70 for node in rounded)
    # The addition and what follows it stay in floating point, as the sum that takes them does.
    assert {node.sources for node in kept} == {("add",), ("relu_1",)}
    assert all(sqnr(node) > 120 for node in kept)

    wrong = edge(stages, quantized, preserve_for=XNNPACK, **flaw("subtracts"))
    worst, *others = losses(stages, exported, quantized, wrong).nodes
    assert (worst.sources, worst.operator) == (("add",), "aten.sub.Tensor")
    assert sqnr(worst) < 20
    assert all(sqnr(node) > 120 for node in others)


def test_noise_that_reaches_outputs(stages, exported):
    """A layer that loses much, of which outputs get little, is after one that loses little, of which they get all."""
    exported = stages.export("residual:branches")
    found = losses(stages, exported, exported["program"], quantize(stages, exported))
    assert next(node.module for node in found.losing if node.module) == "faint"
    assert rank_layers([found])[:2] == ("main", "faint")
    main = next(node for node in found.nodes if node.module == "main")
    assert abs(-10 * math.log10(main.in_outputs) - sqnr(main)) < 6


@pytest.fixture
def graphs(zoo):
    """The graph of a module as it is exported, and as it is after decompositions."""
    del zoo

    def make(module, *shape):
        torch.manual_seed(0)
        exported = torch.export.export(module.eval(), (torch.randn(shape),))
        programs = exported, exported.run_decompositions()
        return tuple(program.module(check_guards=False).graph for program in programs)

    return make


def matched(before, after, renamed=None):
    """Sources and the operator that computes each value."""
    from pteforge.tasks.explain.node_losses import match_nodes

    found = match_nodes(before, after, renamed or {})
    return [(match.sources, str(match.computing.target)) for match in found if match.after.op == "call_function"]


def test_several_values(graphs):
    """Values of an operator that has several are told apart by who uses them."""
    from networks import Function
    from pteforge.tasks.explain.node_losses import match_nodes

    def heads(values):
        first, second, _ = values.chunk(3, dim=1)
        return torch.relu(second), torch.sigmoid(first)

    before, after = graphs(Function(heads), 2, 6)
    pairs = {
        (match.before.args[1], str(next(iter(match.after.users)).target))
        for match in match_nodes(before, after, {})
        if match.sources == ("chunk",)
    }
    assert pairs == {(0, "aten.sigmoid.default"), (1, "aten.relu.default")}


def test_decomposed_and_merged(graphs):
    """What an operator became is compared where its value leaves it, not at a step on the way of the same shape."""
    from networks import Function, Square
    from pteforge.tasks.explain.node_losses import root_of
    from torch.nn.functional import dropout

    decomposed = matched(*graphs(Square(), 3, 3))
    assert decomposed == [(("linear",), "aten.addmm.default"), (("gelu",), "aten.gelu.default")]
    before, after = graphs(Function(lambda values: dropout(values * 2, training=False) + 1), 2)
    (gone,) = (node for node in after.nodes if root_of(node) == "dropout")
    gone.replace_all_uses_with(gone.args[0])
    after.erase_node(gone)
    assert [sources for sources, _ in matched(before, after)] == [("mul", "dropout"), ("add",)]


def test_separate_exports(graphs):
    """Where a program was exported by itself, operators are matched by module, kind and place."""
    from networks import Layers, Rounded
    from pteforge.tasks.explain.node_losses import match_by_module

    module = Layers()
    before, _ = graphs(module, 1, 4)
    module[2] = Rounded(module[2])
    after, _ = graphs(module, 1, 4)
    assert matched(before, after, match_by_module(before, after)) == [
        (("mul",), "aten.mul.Tensor"),
        (("linear",), "aten.linear.default"),
        (("relu",), "aten.relu.default"),
        (("linear_1",), "aten.linear.default"),
        (("mul_1",), "aten.mul.Tensor"),
    ]


def test_origin(graphs):
    """A node knows the path of its module, and the line of the model's own code, not of torch's."""
    import networks
    from pteforge.tasks.programs.graphs import NodeOrigin, origin_of

    before, _ = graphs(networks.Square(), 3, 3)
    (linear,) = (node for node in before.nodes if node.name == "linear")
    code = Path(networks.__file__).read_text().splitlines()
    line = code.index("        return torch.nn.functional.gelu(self.square(values))") + 1
    assert origin_of(linear) == NodeOrigin("square", f"networks.py:{line} in forward")
    assert origin_of(next(iter(before.nodes))) == NodeOrigin()
