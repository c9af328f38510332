"""Patterns are traced only for graphs that can contain them, and that changes no byte."""

from __future__ import annotations

import pytest
from pteforge.tasks.targets.find import find_target


@pytest.fixture(scope="module")
def patterns():
    """The module under test; its import takes seconds."""
    from pteforge.tasks.targets import xnnpack_patterns

    return xnnpack_patterns


@pytest.fixture
def unguarded(patterns, monkeypatch):
    """Upstream's passes as they are."""
    patterns.trace_patterns_where_needed()
    for pass_ in (patterns.ConvertToUpsampleBilinear2d, patterns.ConvertToSDPAPass):
        monkeypatch.setattr(pass_, "call", pass_.call.__wrapped__)


def lowered(module, *inputs) -> bytes:
    """The file that upstream makes with the target's partitioner."""
    import torch
    from executorch.exir import to_edge_transform_and_lower

    program = torch.export.export(module.eval(), inputs)
    partitioners = list(find_target("xnnpack").partitioners())
    return bytes(to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch().buffer)


def model(name: str):
    """A module and its inputs."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def forward(self, query, mask):
            return nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)

    torch.manual_seed(0)
    return {
        "conv": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)),
        "bilinear": lambda: (nn.UpsamplingBilinear2d(scale_factor=2), torch.randn(1, 3, 4, 4)),
        "attention": lambda: (Attention(), torch.randn(1, 2, 4, 8), torch.zeros(4, 4)),
    }[name]()


def test_every_pattern_needs_the_operator(patterns):
    """What the guard looks for is in all of upstream's patterns, so that a graph without it matches none."""
    for graphs, needed in (
        (patterns.bilinear_2d.get_graphs(), patterns.NEEDED_BY_BILINEAR),
        (patterns.sdpa.get_graphs(), patterns.NEEDED_BY_SDPA),
    ):
        assert graphs
        assert all(any(node.target is needed for node in graph.graph.nodes) for graph in graphs)


@pytest.mark.parametrize("name", ["conv", "bilinear", "attention"])
def test_same_bytes(name, request):
    """With the guard and without it the file is the same."""
    guarded = lowered(*model(name))
    request.getfixturevalue("unguarded")
    from pteforge.tasks.targets import xnnpack_patterns

    with pytest.MonkeyPatch.context() as patch:  # the target would guard again
        patch.setattr(xnnpack_patterns, "trace_patterns_where_needed", lambda: None)
        assert lowered(*model(name)) == guarded


def test_nothing_is_traced_in_vain(patterns, monkeypatch):
    """A model without the operators is lowered without the patterns; one that has them uses them."""

    def traced(*_args: object) -> None:
        raise AssertionError("patterns were traced")

    monkeypatch.setattr(patterns.bilinear_2d, "get_graphs_dict", traced)
    monkeypatch.setattr(patterns.sdpa, "get_graphs", traced)
    assert lowered(*model("conv"))
    with pytest.raises(Exception, match="ConvertToUpsampleBilinear2d"):
        lowered(*model("bilinear"))
