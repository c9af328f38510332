"""Patterns are traced only for graphs that can contain them, and that changes no byte."""

import pytest


@pytest.fixture(scope="module")
def patterns():
    """The module under test; its import takes seconds."""
    from pteforge.tasks.upstream import xnnpack_patterns

    return xnnpack_patterns


@pytest.fixture
def unguarded(patterns, monkeypatch):
    patterns.prune_xnnpack_patterns()
    for pass_ in (patterns.ConvertToUpsampleBilinear2d, patterns.ConvertToSDPAPass):
        monkeypatch.setattr(pass_, "call", pass_.call.__wrapped__)


def model(name: str):
    import torch
    from pteforge.tests.zoo.networks import Function
    from torch import nn

    def attend(query, mask):
        return nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)

    torch.manual_seed(0)
    return {
        "conv": lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)),
        "bilinear": lambda: (nn.UpsamplingBilinear2d(scale_factor=2), torch.randn(1, 3, 4, 4)),
        "attention": lambda: (Function(attend), torch.randn(1, 2, 4, 8), torch.zeros(4, 4)),
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
def test_same_bytes(name, request, patterns, lower_for):
    """With the guard and without it the file is the same."""
    guarded = lower_for("xnnpack", *model(name))
    request.getfixturevalue("unguarded")
    with pytest.MonkeyPatch.context() as patch:  # the target would guard again
        patch.setattr(patterns, "prune_xnnpack_patterns", lambda: None)
        assert lower_for("xnnpack", *model(name)) == guarded


def test_nothing_is_traced_in_vain(patterns, monkeypatch, lower_for):
    """A model without the operators is lowered without the patterns; one that has them uses them."""

    def traced(*_args: object) -> None:
        raise AssertionError("patterns were traced")

    monkeypatch.setattr(patterns.bilinear_2d, "get_graphs_dict", traced)
    monkeypatch.setattr(patterns.sdpa, "get_graphs", traced)
    assert lower_for("xnnpack", *model("conv"))
    with pytest.raises(Exception, match="ConvertToUpsampleBilinear2d"):
        lower_for("xnnpack", *model("bilinear"))
