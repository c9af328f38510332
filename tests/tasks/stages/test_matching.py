"""Which operators of two programs stand for each other, where names and numbers of operators are not the same."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def models(monkeypatch):
    """The modules that are matched here."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "zoo")
    import matched_models

    return matched_models


@pytest.fixture
def graphs():
    """The graph of a module as it is exported, and as it is after decompositions."""
    import torch
    from pteforge.tasks.stages.program_run import unlifted

    def make(module, *shape):
        torch.manual_seed(0)
        example = (torch.randn(shape),)
        exported = torch.export.export(module.eval(), example)
        return unlifted(exported).graph, unlifted(exported.run_decompositions()).graph

    return make


def matched(before, after, renamed=None):
    """Sources and the operator that computes each value."""
    from pteforge.tasks.stages.matching import match_nodes

    found = match_nodes(before, after, renamed or {})
    return [(match.sources, str(match.computing.target)) for match in found if match.after.op == "call_function"]


def test_several_values(graphs, models):
    """Values of an operator that has several are told apart by who uses them."""
    from pteforge.tasks.stages.matching import match_nodes

    before, after = graphs(models.Heads(), 2, 6)
    pairs = {
        (match.before.args[1], str(next(iter(match.after.users)).target))
        for match in match_nodes(before, after, {})
        if match.sources == ("chunk",)
    }
    assert pairs == {(0, "aten.sigmoid.default"), (1, "aten.relu.default")}


def test_decomposed(graphs, models):
    """What an operator became is compared where its value leaves it, and not at a step on the way of the same shape."""
    before, after = graphs(models.Squares(), 3, 3)
    assert matched(before, after) == [(("linear",), "aten.addmm.default"), (("gelu",), "aten.gelu.default")]


def test_merged(graphs, models):
    """An operator that is gone counts with the one before it, whose value is that of both."""
    from pteforge.tasks.stages.matching import root_of

    before, after = graphs(models.Dropping(), 2)
    (gone,) = (node for node in after.nodes if root_of(node) == "dropout")
    gone.replace_all_uses_with(gone.args[0])
    after.erase_node(gone)
    assert [sources for sources, _ in matched(before, after)] == [("mul", "dropout"), ("add",)]


def test_exported_anew(graphs, models):
    """Where a program was exported by itself, operators are matched by module, kind and place.

    All of a layer that was one operator stands for it; operators of the model itself follow each other.
    """
    from pteforge.tasks.stages.node_origin import same_places

    module = models.Layers()
    before, _ = graphs(module, 1, 4)
    module[2] = models.Rounded(module[2])
    after, _ = graphs(module, 1, 4)
    assert matched(before, after, same_places(before, after)) == [
        (("mul",), "aten.mul.Tensor"),
        (("linear",), "aten.linear.default"),
        (("relu",), "aten.relu.default"),
        (("linear_1",), "aten.linear.default"),
        (("mul_1",), "aten.mul.Tensor"),
    ]


def test_origin(graphs, models):
    """A node knows the path of its module, and the line of the model's own code, not of torch's."""
    from pteforge.tasks.stages.node_origin import Origin, origin_of

    before, _ = graphs(models.Squares(), 3, 3)
    (linear,) = (node for node in before.nodes if node.name == "linear")
    code = Path(models.__file__).read_text().splitlines()
    line = code.index("        return torch.nn.functional.gelu(self.square(values))") + 1
    assert origin_of(linear) == Origin("square", f"matched_models.py:{line} in forward")
    assert origin_of(next(iter(before.nodes))) == Origin()
