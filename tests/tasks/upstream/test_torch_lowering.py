"""Code of graphs, the operator registry and origins of nodes, and weights that are absent: not read."""

import copy
import pickle
from typing import Any

import pytest
import torch
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.store import open_store
from pteforge.tasks.programs.binding import graph_of
from pteforge.tasks.programs.program import load_graph, save_program
from pteforge.tasks.upstream.torch_lowering import (
    WeightRead,
    code_on_demand,
    no_weight_reads,
    one_registry_scan,
    shared_ancestors,
)
from torch._export import utils
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.traceback import NodeSource


def _traced() -> Any:
    return torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))


class TestGeneratedCode:
    """Code of graph modules, generated when it is used."""

    @pytest.fixture
    def marked(self, monkeypatch) -> Any:
        """A graph module whose graph was edited and recompiled in the context, and a list of graphs with code."""
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
        module, _ = marked
        x = torch.tensor([[1.0, -20.0]])
        linear = module.get_submodule("0")
        assert torch.equal(use(module, x), linear(x))

    def test_messages_of_upstream(self):
        """A graph that is formatted into a message generates nothing; `str` has its code."""
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
        node = next(iter(_traced().graph.nodes))
        node.meta["from_node"] = [NodeSource(node, "earlier")]
        with shared_ancestors():
            assert NodeSource(node, "now").from_node[0] is node.meta["from_node"][0]
        assert NodeSource(node, "now").from_node[0] is not node.meta["from_node"][0]


class TestWeightReads:
    """Weights that are absent can be looked at, computed with and copied, and not read."""

    @pytest.fixture
    def loaded(self, tmp_path):
        """The graph of a linear layer whose bias is part of a larger storage, and its absent weights."""
        layer = torch.nn.Linear(4, 4)
        layer.bias = torch.nn.Parameter(torch.randn(8)[4:])
        layer.register_buffer("low", torch.arange(4.0))
        layer.register_buffer("lower", layer.low[:2])
        program = torch.export.export(layer, (torch.zeros(1, 4),))
        store = LocalStore.open(tmp_path / "store")
        ref = save_program(program, kind="program/test", store=store)
        with open_store(str(store.root)) as opened:
            return load_graph(graph_of(ref, opened), store)

    def test_looked_at(self, loaded):
        """Type, shape and memory are those of the weights; they can be viewed, and computed with."""
        program, absent = loaded
        state = program.state_dict
        with no_weight_reads(absent):
            weight, bias = state["weight"], state["bias"]
            assert isinstance(weight, FakeTensor)
            assert isinstance(weight, torch.nn.Parameter)
            assert (weight.shape, weight.dtype, weight.device.type, weight.requires_grad) == (
                (4, 4),
                torch.float32,
                "cpu",
                1,
            )
            assert bias.storage_offset() == 4
            assert absent.slot(weight.t().untyped_storage()) == absent.slot(weight.untyped_storage())
            assert (weight.t().contiguous() + bias).shape == (4, 4)
            assert absent.slot(state["low"].untyped_storage()) == absent.slot(state["lower"].untyped_storage())

    @pytest.mark.parametrize(
        "read",
        [
            lambda weight: weight[0, 0].item(),
            lambda weight: weight.tolist(),
            lambda weight: weight.data_ptr(),
            lambda weight: (weight.clone() * 2).sum().item(),
            lambda weight: torch.equal(weight, weight),
            torch.nonzero,
            lambda weight: weight.detach().mul_(2),
            lambda weight: bool((weight + torch.ones(4, 4) > 0).all()),
            lambda weight: weight @ weight[:3],
        ],
    )
    def test_read(self, loaded, read):
        """Reading or writing a weight, or something computed from it, raises what `except Exception` does not catch."""
        program, absent = loaded
        with no_weight_reads(absent), pytest.raises(WeightRead):
            read(program.state_dict["weight"])

    def test_copied(self, loaded):
        """A copy is another weight with the same bytes; tensors that share memory still do, unless parameters."""
        program, absent = loaded
        weight, low = program.state_dict["weight"], program.state_dict["low"]
        with no_weight_reads(absent):
            copied = copy.deepcopy(weight)
            copies = copy.deepcopy({name: program.state_dict[name] for name in ("low", "lower")})
            with pytest.raises(WeightRead, match="part of a larger storage"):
                copy.deepcopy(program.state_dict["bias"])
        assert isinstance(copied, torch.nn.Parameter)
        assert copied.untyped_storage()._cdata != weight.untyped_storage()._cdata
        assert absent.slot(copied.untyped_storage()) == absent.slot(weight.untyped_storage())
        storages = [each.untyped_storage() for each in copies.values()]
        assert storages[0]._cdata == storages[1]._cdata != low.untyped_storage()._cdata
        assert absent.slot(storages[0]) == absent.slot(low.untyped_storage())

    def test_afterwards(self, loaded):
        """Afterwards, and for other fake tensors, everything is as torch has it."""

        def state() -> Any:
            owners = FakeTensor, FakeTensorMode, torch.UntypedStorage
            return [{name: value for name, value in vars(owner).items() if callable(value)} for owner in owners]

        program, absent = loaded
        before = state()
        with no_weight_reads(absent):
            other = torch.empty_like(next(node.meta["val"] for node in program.graph.nodes))
            assert other.mul_(2).add(1).shape == other.shape
        assert state() == before
