"""The search for layers to leave out: how many files it makes, and in which order it takes layers."""

import math

import pytest
from pteforge.tasks.results.figures import Worst
from pteforge.tasks.results.layer_search import Attempt, FoundLayers, next_count, rank_layers
from pteforge.tasks.results.numerics import NodeLoss, NodeLosses


def search(needed, ranked):
    """All attempts of a search whose file passes once the `needed` worst layers are left out."""
    attempts = []
    while (count := next_count(attempts, ranked)) is not None:
        assert count not in [attempt.layers for attempt in attempts]
        attempts.append(Attempt(count, 0.5, count >= needed))
    return attempts


@pytest.mark.parametrize("ranked", [0, 1, 2, 3, 12, 100])
def test_finds_the_fewest(ranked):
    """Whatever number of layers is needed, the search ends with it, after about twice its logarithm of files."""
    for needed in range(max(ranked, 1)):
        attempts = search(needed, ranked)
        assert min(attempt.layers for attempt in attempts if attempt.passes) == needed
        assert len(attempts) <= 2 + 2 * math.ceil(math.log2(needed + 1))
    assert not any(attempt.passes for attempt in search(ranked + 1, ranked))
    assert [attempt.layers for attempt in search(5, 12)] == [0, 1, 2, 4, 8, 6, 5]


def loss(module, decibels, problem=""):
    """An operator's."""
    own = None if problem else Worst(1, 0.1, 0.1, decibels)
    return NodeLoss("node", "aten.linear.default", ("linear",), module, "", own, own, problem)


def test_order_of_layers():
    """A layer is as bad as the worst of its operators in any method; containers and equal values are left out."""
    encode = NodeLosses((loss("stem", 40.0), loss("blocks.0.fc", 12.0), loss("blocks.0", 3.0), loss("", 1.0)), 4)
    decode = NodeLosses((loss("stem", 10.0), loss("head", None), loss("tail", 0.0, "NaN")), 3)
    assert rank_layers([encode, decode]) == ("tail", "stem", "blocks.0.fc")


def test_label():
    """The layers in words, and that there are none."""
    found = FoundLayers(("head", "stem"), ("head", "stem"), 12, (), 1)
    assert found.label == "2 of 12 layers (head, stem)"
    assert FoundLayers((), (), 0, (), 1).label == "no layer"
