"""Lowering with the patches that save time gives the same files as without, and each patch saves what it says."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest
from pteforge.tasks.targets.find import find_target_class, target_names
from pteforge.tasks.upstream.lean import SWITCH
from pteforge.tests.lowering import XNNPACK, recipe

STATIC = {"quantize": {"quantizer": "xnnpack"}}
FAT = recipe("xnnpack", "portable")
LOWERING_HERE = [
    name
    for name, target in ((name, find_target_class(name)) for name in target_names())
    if target.reproducible and target.available() is None
]

# What the patches have conditions for: sizes, submodules, constants, several methods, state, quantization.
FEW = [
    ("builders:conv_net", XNNPACK),
    ("builders:layer_of_any_batch", XNNPACK),
    ("builders:nested_branches", XNNPACK),
    ("builders:two_methods", FAT),
]
MANY = [
    *((f"builders:{name}", FAT) for name in ("images", "mlp", "constant", "two_partitions", "shuffle", "hardswish")),
    *((f"builders:{name}", FAT) for name in ("counter", "smoothing", "rows", "sums", "mixed_inputs", "nested_outputs")),
    *((f"builders:{name}", FAT) for name in ("tied", "cached", "waves", "nested_waves", "stack", "two_named_stacks")),
    *((f"builders:{name}", FAT) for name in ("other_types", "optional_input", "size_output", "readers_and_writers")),
    *(("builders:conv_net", recipe(name)) for name in LOWERING_HERE),
    ("builders:conv_net", recipe("xnnpack", **STATIC)),
    ("builders:two_networks", recipe("xnnpack", **STATIC)),
    ("builders:conv_net", recipe("xnnpack", compile={"generate_etrecord": True, "emit_stacktrace": True})),
]


def _identities(lower: Any, builder: str, made: Any) -> Any:
    """The produced file, and the identity of every output after the export.

    An ETRecord is left out: in it, nodes have as many ancestors as there were traces.
    """
    lowered = lower(builder, made, until="serialize")
    outputs = {
        (step, role): ref.identity
        for step, roles in lowered.outputs.items()
        for role, ref in roles.items()
        if not step.startswith("export") and role != "etrecord"
    }
    return lowered.file, outputs


def _assert_same(lower: Any, monkeypatch: pytest.MonkeyPatch, builder: str, made: Any) -> None:
    lean = _identities(lower, builder, made)
    monkeypatch.setenv(SWITCH, "plain")
    assert _identities(lower, builder, made) == lean


@pytest.mark.parametrize(("builder", "made"), FEW)
def test_same_files(lower, monkeypatch, builder, made):
    """The file and every program on the way to it are the same with and without the patches."""
    _assert_same(lower, monkeypatch, builder, made)


@pytest.mark.slow
@pytest.mark.parametrize(("builder", "made"), MANY)
def test_same_files_of_all_kinds(lower, monkeypatch, builder, made):
    """As above, for further models, targets and recipes."""
    _assert_same(lower, monkeypatch, builder, made)


def test_switch(monkeypatch):
    """The environment variable turns all patches off; afterwards nothing is left of them in any case."""
    from executorch.exir.pass_base import _ExportPassBase
    from pteforge.tasks.upstream.lean import lean_lowering
    from torch._export import utils
    from torch._ops import OperatorBase
    from torch.fx import GraphModule
    from torch.fx.traceback import NodeSource

    def state() -> Any:
        owners = GraphModule, NodeSource, OperatorBase, _ExportPassBase
        return [dict(vars(owner)) for owner in owners], utils._collect_all_valid_cia_ops

    plain = state()
    with lean_lowering():
        assert state() != plain
    assert state() == plain
    monkeypatch.setenv(SWITCH, "plain")
    with lean_lowering():
        assert state() == plain


def _traced() -> Any:
    import torch

    return torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))


class TestGeneratedCode:
    """Code of graph modules, generated when it is used."""

    @pytest.fixture
    def marked(self, monkeypatch) -> Any:
        """A graph module whose graph was edited and recompiled in the context, and a list of graphs with code."""
        import torch
        from pteforge.tasks.upstream.generated_code import code_on_demand

        generated = []
        generate = torch.fx.Graph.python_code
        monkeypatch.setattr(
            torch.fx.Graph,
            "python_code",
            lambda graph, *args, **kwargs: generated.append(graph) or generate(graph, *args, **kwargs),
        )
        module = _traced()
        generated.clear()
        with code_on_demand():
            relu = next(node for node in module.graph.nodes if node.target == "1")
            relu.replace_all_uses_with(relu.args[0])
            module.graph.erase_node(relu)
            module.recompile()
            module.recompile()
        return module, generated

    def test_not_before_it_is_used(self, marked):
        """Recompiling generates no code; once it is needed, it is generated once."""
        module, generated = marked
        assert not generated
        assert "relu" not in module.code
        assert len(generated) == 1
        assert module.code
        assert len(generated) == 1

    @pytest.mark.parametrize(
        "use",
        [
            lambda module, x: module(x),
            lambda module, x: module.forward(x),
            lambda module, x: copy.deepcopy(module)(x),
            lambda module, x: copy.copy(module)(x),
            lambda module, x: pickle.loads(pickle.dumps(module))(x),  # noqa: S301 - our own
        ],
    )
    def test_uses(self, marked, use):
        """However a module is used, its code is that of the edited graph."""
        import torch

        module, _ = marked
        x = torch.tensor([[1.0, -20.0]])
        linear = module.get_submodule("0")
        assert torch.equal(use(module, x), linear(x))

    def test_messages_of_upstream(self):
        """A graph that is formatted into a message generates nothing; `str` has its code."""
        from pteforge.tasks.upstream.generated_code import code_on_demand

        with code_on_demand():
            module = _traced()
            module.recompile()
            assert f"{module}" == "Sequential of 4 nodes"
            assert "_code" in vars(type(module))
            assert "def forward" in str(module)
            assert module.recompile().src == module.code


class TestRegistryScans:
    """Scans of the operator registry."""

    def test_once_until_something_is_registered(self, monkeypatch):
        """The registry is scanned once, and again after an operator came, by either way."""
        import torch
        from pteforge.tasks.upstream.registry_scans import one_registry_scan
        from torch._export import utils

        scans = []
        scan = utils._collect_all_valid_cia_ops_for_namespace
        monkeypatch.setattr(
            utils, "_collect_all_valid_cia_ops_for_namespace", lambda space: scans.append(space) or scan(space)
        )
        with torch.library._scoped_library("pteforge_test_scans", "DEF") as library, one_registry_scan():
            before = utils._collect_all_valid_cia_ops()
            assert scans
            scans.clear()
            assert utils._collect_all_valid_cia_ops() == before
            assert not scans
            library.define("twice(Tensor x) -> Tensor")
            library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
            twice = torch.ops.pteforge_test_scans.twice.default
            assert utils._collect_all_valid_cia_ops() - before == {twice}
            scans.clear()
            torch.ops.aten.relu.default.py_impl  # noqa: B018 - a look registers nothing
            utils._collect_all_valid_cia_ops()
            assert not scans


class TestNodeAncestry:
    """Ancestors of nodes."""

    def test_shared(self):
        """Copies of a node's origin are the same object, in the context only."""
        from pteforge.tasks.upstream.node_ancestry import shared_ancestors
        from torch.fx.traceback import NodeSource

        node = next(iter(_traced().graph.nodes))
        node.meta["from_node"] = [NodeSource(node, "earlier")]
        with shared_ancestors():
            assert NodeSource(node, "now").from_node[0] is node.meta["from_node"][0]
        assert NodeSource(node, "now").from_node[0] is not node.meta["from_node"][0]


class TestGraphSorting:
    """Graphs, sorted without copying their nodes."""

    @staticmethod
    def _random(seed: int) -> Any:
        """A graph module whose nodes stand in any order, with names that collide once some of them are gone."""
        import torch
        from pteforge.tasks.upstream.graph_sorting import _FIRST

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

    @pytest.mark.parametrize("seed", range(20))
    def test_as_upstream_sorts(self, seed):
        """Nodes, their users, names and what they take are as upstream has them, also in a graph that grows on."""
        import torch
        from pteforge.tasks.upstream.graph_sorting import sort_nodes
        from torch.fx.passes.tools_common import legalize_graph

        def seen(module: Any) -> Any:
            graph = module.graph
            nodes = [(node.name, str(node.target), str(node.args), [*map(str, node.users)]) for node in graph.nodes]
            found = [*map(str, graph.find_nodes(op="call_function", target=torch.relu))]
            return nodes, found, len(graph.nodes), graph.owning_module is module

        sorts = []
        for sort in (legalize_graph, sort_nodes):
            module = self._random(seed)
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
        from pteforge.tasks.upstream.graph_sorting import sort_nodes

        module = self._random(0)
        first, last = [node for node in module.graph.nodes if node.op == "call_function"][:2]
        first.args, last.args = (last,), (first,)
        with pytest.raises(RuntimeError, match="cycles"):
            sort_nodes(module)


class TestPartitionMerging:
    """Whether two partitions may become one, by sets."""

    @pytest.mark.parametrize("seed", range(10))
    def test_as_upstream_decides(self, seed):
        """The answer is the same for any two partitions."""
        from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
        from pteforge.tasks.upstream.partition_merging import merging_by_sets
        from torch.fx.passes.infra.partitioner import Partition
        from torch.fx.passes.operator_support import OperatorSupport

        chance = random.Random(seed)  # noqa: S311 - no secret
        module = TestGraphSorting._random(seed)
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


class TestIdleRetraces:
    """Traces of a graph that would give it back."""

    @staticmethod
    def _edge(*shape: int, dynamic: bool = False) -> Any:
        import torch
        from executorch.exir import to_edge

        shapes = {"input": {0: torch.export.Dim("batch", max=8)}} if dynamic else None
        exported = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(*shape),), dynamic_shapes=shapes)
        return to_edge(exported).exported_program().graph_module

    @pytest.mark.parametrize(("dynamic", "skipped"), [(False, True), (True, False)])
    def test_only_what_changes_nothing(self, dynamic, skipped):
        """A static graph is traced again only once it has been edited; one with symbolic sizes is traced each time."""
        from executorch.exir.pass_base import ExportPass
        from pteforge.tasks.upstream.idle_retraces import no_idle_retraces

        with no_idle_retraces():
            first = ExportPass()(self._edge(4, 2, dynamic=dynamic)).graph_module
            second = ExportPass()(first).graph_module
            assert (second is first) == skipped
            operator = next(node for node in second.graph.nodes if node.op == "call_function")
            operator.name = "renamed"
            assert ExportPass()(second).graph_module is not second
        assert ExportPass()(first).graph_module is not first

    def test_passes_that_change_what_is_traced(self):
        """A pass that overrides a callback is always traced."""
        from executorch.exir.pass_base import ExportPass
        from pteforge.tasks.upstream.idle_retraces import no_idle_retraces

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
