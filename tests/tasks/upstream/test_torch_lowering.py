"""Code of graphs, the operator registry and origins of nodes."""

import copy
import pickle
import sys
from typing import Any

import pytest
import torch
from pteforge.tasks.upstream.torch_lowering import (
    code_on_demand,
    one_registry_scan,
    shared_ancestors,
)
from torch._export import utils
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

    def test_modules_without_attributes(self, monkeypatch):
        """What packages put among modules need not be one: OpenVINO's has no `__dict__`."""
        monkeypatch.setitem(sys.modules, "pteforge_test_no_module", object())
        with one_registry_scan():
            assert utils._collect_all_valid_cia_ops()


class TestNodeAncestry:
    """Ancestors of nodes."""

    def test_shared(self):
        """Copies of a node's origin are the same object, in the context only."""
        node = next(iter(_traced().graph.nodes))
        node.meta["from_node"] = [NodeSource(node, "earlier")]
        with shared_ancestors():
            assert NodeSource(node, "now").from_node[0] is node.meta["from_node"][0]
        assert NodeSource(node, "now").from_node[0] is not node.meta["from_node"][0]
