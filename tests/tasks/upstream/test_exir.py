"""What exir repeats and mistakes: the same programs and files with fewer traces, and files where it fails by itself."""

import operator
import random
from typing import Any
from unittest import mock

import pytest
import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge
from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from executorch.exir.pass_base import ExportPass, _ExportPassBase
from pteforge.configs.recipe import CompileOptions
from pteforge.tasks.backend.emission import backend_config, to_executorch
from pteforge.tasks.backend.exir import to_edge_program
from pteforge.tasks.upstream.exir import _FIRST, merging_by_sets, no_idle_retraces, sort_nodes
from pteforge.tests.lowering import lower_upstream, outputs_of, recipe
from pteforge.tests.zoo.networks import Function, FunctionOfLayers
from torch import nn
from torch._export.verifier import SpecViolationError
from torch.export import export
from torch.fx.passes.infra.partitioner import Partition
from torch.fx.passes.operator_support import OperatorSupport
from torch.fx.passes.tools_common import legalize_graph


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_views_of_attention(lower, target):
    """The file is verified, although ExecuTorch by itself fails with the program."""
    asked = recipe(target)
    with pytest.raises(ValueError, match="Cannot view a tensor"):
        lower_upstream("builders:heads", asked)
    lower("builders:heads", asked)


VALUES = [[1, -2, 3], [4, -5, 7]]


def _computed(compute: Any, x: torch.Tensor) -> torch.Tensor:
    """What a file returns that computes it."""
    program = to_edge_program(export(Function(compute), (x,)), [], EdgeCompileConfig())
    manager = EdgeProgramManager({"forward": program}, None, EdgeCompileConfig())
    content = bytes(to_executorch(manager, backend_config(CompileOptions(), ["forward"])).buffer)
    (made,) = outputs_of(content, x)
    return made


@pytest.mark.parametrize("number", [17, -17, 17.5])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float32])
def test_remainders_of_numbers(number, dtype):
    """They have the divisor's sign, and the dtype that eager gives them."""
    x = torch.tensor(VALUES).to(dtype)
    assert _computed(lambda x: number % x, x).equal(number % x)


@pytest.mark.parametrize("compute", [operator.and_, operator.or_, operator.xor])
def test_bits_of_numbers(compute):
    """Operators on bits, too."""
    x = torch.tensor(VALUES)
    assert _computed(lambda x: compute(99, x), x).equal(compute(99, x))


def test_executorch_takes_no_numbers_by_itself():
    """Once this fails, so does the reason for `take_numbers_as_tensors`."""
    with pytest.raises(SpecViolationError):
        to_edge(export(Function(lambda x: 17 % x), (torch.tensor(VALUES),)))


def _random(seed: int) -> Any:
    """A graph module whose nodes stand in any order, with names that collide once some of them are gone."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x_{number}") for number in range(3)]
    for _ in range(40):
        target = chance.choice([torch.relu, torch.neg, *sorted(_FIRST, key=str)])
        nodes.append(graph.call_function(target, tuple(chance.choices(nodes, k=2))))
    graph.output(tuple(nodes))
    output = graph.output_node()
    for node in chance.sample(nodes[3:], 20):
        output.append(node)
    for node in list(graph.nodes):  # users in another order than nodes
        node.replace_all_uses_with(node)
    return torch.fx.GraphModule(torch.nn.Module(), graph)


class TestGraphSorting:
    """Graphs, sorted without copying their nodes."""

    @pytest.mark.parametrize("seed", range(6))
    def test_as_upstream_sorts(self, seed):
        """Nodes, their users, names and what they take are as upstream has them, also in a graph that grows on."""

        def seen(module: Any) -> Any:
            graph = module.graph
            nodes = [(node.name, str(node.target), str(node.args), [*map(str, node.users)]) for node in graph.nodes]
            found = [*map(str, graph.find_nodes(op="call_function", target=torch.relu))]
            return nodes, found, len(graph.nodes), graph.owning_module is module

        sorts = []
        for sort in (legalize_graph, sort_nodes):
            module = _random(seed)
            unsorted = seen(module)
            sort(module)
            sorted_once = seen(module)
            relu = next(iter(module.graph.nodes))
            with module.graph.inserting_before(module.graph.output_node()):
                for _ in range(3):
                    relu = module.graph.call_function(torch.relu, (relu,))
            sort(module)
            module.graph.lint()
            module.recompile()
            sorts.append((sorted_once, seen(module), module.code))
        assert sorts[0] == sorts[1]
        assert sorts[0][0] != unsorted

    def test_cycles(self):
        """A graph with a cycle is refused as upstream refuses it."""
        module = _random(0)
        first, last = [node for node in module.graph.nodes if node.op == "call_function"][:2]
        first.args, last.args = (last,), (first,)
        with pytest.raises(RuntimeError, match="cycles"):
            sort_nodes(module)


class TestPartitionMerging:
    """Whether two partitions may become one, by sets."""

    @pytest.mark.parametrize("seed", range(4))
    def test_as_upstream_decides(self, seed):
        """The answer is the same for any two partitions."""
        chance = random.Random(seed)  # noqa: S311 - no secret
        module = _random(seed)
        partitioner = GroupBasedPartitioner(module, OperatorSupport())
        called = [node for node in module.graph.nodes if node.op == "call_function"]
        sets = {number: Partition(number, chance.sample(called, chance.choice([1, 2, 5]))) for number in range(12)}
        pairs = [(one, other) for one in sets for other in sets if one < other]

        def answers() -> list[bool]:
            return [partitioner._can_merge_partitions(*pair, sets) for pair in pairs]

        expected = answers()
        with merging_by_sets():
            assert answers() == expected
        assert len(set(expected)) == 2


ROWS = (torch.randn(4, 6),)
IMAGE = (torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last),)


MODELS = {
    "layers": (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2)), ROWS),
    "scalars": (Function(lambda x: (x * 2 + 1).clamp(0, 1)), ROWS),
    "mixed types": (Function(lambda x: x + torch.arange(6)), ROWS),
    "integers divided": (Function(lambda x: torch.arange(24).reshape(4, 6) / x.to(torch.int64)), ROWS),
    "views": (Function(lambda x: x.t().reshape(3, 8).unsqueeze(0).squeeze(0)), ROWS),
    "clones": (Function(lambda x: x.clone() + x.to(torch.float64).to(torch.float32)), ROWS),
    "constants": (Function(lambda x: x @ (torch.ones(6, 6) * 3)), ROWS),
    "weights alone": (FunctionOfLayers(lambda net, x: x + net.weights.t(), weights=torch.randn(6, 4)), ROWS),
    "another order": (Function(lambda x: torch.nn.functional.avg_pool2d(x, 2).mean((2, 3))), IMAGE),
}


def lowered(model, inputs):
    """The edge program as text, the file, and how many graphs were traced."""
    with mock.patch.object(
        _ExportPassBase, "call_submodule", autospec=True, side_effect=_ExportPassBase.call_submodule
    ) as traced:
        edge = to_edge(export(model.eval(), inputs))
        text = str(edge.exported_program())
        return text, edge.to_executorch().buffer, traced.call_count


@pytest.mark.parametrize("model", MODELS)
def test_same_programs_with_fewer_traces(model):
    """The edge program and the file are the same, with fewer traces."""
    text, file, plain = lowered(*MODELS[model])
    with no_idle_retraces():
        *same, fewer = lowered(*MODELS[model])
    assert same == [text, file]
    assert fewer < plain


class TestIdleRetraces:
    """Traces of a graph that would give it back."""

    @staticmethod
    def _edge(*shape: int, dynamic: bool = False) -> Any:
        shapes = {"input": {0: torch.export.Dim("batch", max=8)}} if dynamic else None
        exported = export(nn.Linear(2, 2), (torch.zeros(*shape),), dynamic_shapes=shapes)
        return to_edge(exported).exported_program().graph_module

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_only_what_changes_nothing(self, dynamic):
        """A graph is traced again only once it has been edited, also one with symbolic sizes."""
        with no_idle_retraces():
            first = ExportPass()(self._edge(4, 2, dynamic=dynamic)).graph_module
            second = ExportPass()(first).graph_module
            assert second is first
            operator = next(node for node in second.graph.nodes if node.op == "call_function")
            operator.name = "renamed"
            assert ExportPass()(second).graph_module is not second
        assert ExportPass()(first).graph_module is not first

    def test_passes_that_change_what_is_traced(self):
        """A pass that overrides a callback is always traced."""

        class Counting(ExportPass):
            calls = 0

            def call_operator(self, *args: Any) -> Any:
                self.calls += 1
                return super().call_operator(*args)

        with no_idle_retraces():
            traced = ExportPass()(self._edge(4, 2)).graph_module
            counting = Counting()
            counting(traced)
        assert counting.calls
