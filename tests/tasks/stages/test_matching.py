"""Which operators of two programs stand for each other, where names and numbers of operators are not the same."""

from pathlib import Path

import pytest
import torch


@pytest.fixture
def graphs(zoo):
    """The graph of a module as it is exported, and as it is after decompositions."""
    del zoo
    from pteforge.tasks.verify.running import unlifted

    def make(module, *shape):
        torch.manual_seed(0)
        exported = torch.export.export(module.eval(), (torch.randn(shape),))
        return unlifted(exported).graph, unlifted(exported.run_decompositions()).graph

    return make


def matched(before, after, renamed=None):
    """Sources and the operator that computes each value."""
    from pteforge.tasks.lower.matching import match_nodes

    found = match_nodes(before, after, renamed or {})
    return [(match.sources, str(match.computing.target)) for match in found if match.after.op == "call_function"]


def test_several_values(graphs):
    """Values of an operator that has several are told apart by who uses them."""
    from networks import Function
    from pteforge.tasks.lower.matching import match_nodes

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
    from pteforge.tasks.lower.matching import root_of
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
    from pteforge.tasks.lower.matching import match_places

    module = Layers()
    before, _ = graphs(module, 1, 4)
    module[2] = Rounded(module[2])
    after, _ = graphs(module, 1, 4)
    assert matched(before, after, match_places(before, after)) == [
        (("mul",), "aten.mul.Tensor"),
        (("linear",), "aten.linear.default"),
        (("relu",), "aten.relu.default"),
        (("linear_1",), "aten.linear.default"),
        (("mul_1",), "aten.mul.Tensor"),
    ]


def test_origin(graphs):
    """A node knows the path of its module, and the line of the model's own code, not of torch's."""
    import networks
    from pteforge.tasks.lower.matching import Origin, origin_of

    before, _ = graphs(networks.Square(), 3, 3)
    (linear,) = (node for node in before.nodes if node.name == "linear")
    code = Path(networks.__file__).read_text().splitlines()
    line = code.index("        return torch.nn.functional.gelu(self.square(values))") + 1
    assert origin_of(linear) == Origin("square", f"networks.py:{line} in forward")
    assert origin_of(next(iter(before.nodes))) == Origin()
