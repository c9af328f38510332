"""Which rung of a ladder loses quality, and the search for layers to leave out."""

import json
import math

import pytest
from pteforge.configs.verification import VerifyBounds
from pteforge.tasks.results.accuracy import FoundQuantization, ScoredFile, next_count, rank_layers
from pteforge.tasks.results.figures import Worst
from pteforge.tasks.results.numerics import NodeLoss, NodeLosses, Rung, Rungs, find_loss


def ladder(**decibels):
    """A ladder of one method; None: the rung could not be run, 0: it equals eager."""
    return Rungs(tuple(rung(name, ratio) for name, ratio in decibels.items()))


def rung(name, ratio, specializations=(), method="forward"):
    """A rung by its SQNR."""
    if ratio is None:
        return Rung(name, specializations, method, None, "cannot be run")
    return Rung(name, specializations, method, Worst(1, 0.5, 0.25, ratio or None))


LOOSE = VerifyBounds(min_sqnr_db=20)


@pytest.mark.parametrize(
    ("found", "loses"),
    [
        (ladder(exported=0, edge=140.0, payload=0), None),
        (ladder(exported=0, edge=140.0, payload=91.0), None),
        (ladder(exported=0, edge=85.0, payload=80.0), None),
        (ladder(exported=0, edge=83.9, payload=80.0), "edge"),
        (ladder(exported=0, quantized=34.0, edge=34.0, payload=33.0), "quantized"),
        (ladder(exported=0, quantized=34.0, edge=25.0, payload=25.0), "quantized"),
        (ladder(exported=0, quantized=34.0, edge=12.0, payload=12.0), "edge"),
        (ladder(exported=0, quantized=None, edge=34.0, payload=34.0), "edge"),
        (ladder(exported=50.0, edge=50.0), "exported"),
        (ladder(exported=None), None),
    ],
)
def test_first_that_loses(found, loses):
    """The first rung outside of the bounds; where all are inside, the first that drops by more than 6 dB."""
    loss = find_loss(found, LOOSE)
    assert (loss.rung.name if loss else None) == loses


def test_reasons():
    """The reason says by what it was judged, and against which rung."""
    dropped = find_loss(ladder(exported=0, quantized=34.0), LOOSE)
    assert (dropped.before.name, dropped.reason) == ("exported", "is 56.0 dB worse than exported (6 dB are allowed)")
    outside = find_loss(ladder(exported=0, edge=60.0, payload=12.0), VerifyBounds(min_sqnr_db=20, max_abs_error=0.5))
    expected = "is outside of the recipe's bounds: SQNR 12.0 dB < 20.0 dB"
    assert (outside.before.name, outside.reason) == ("edge", expected)
    first = find_loss(ladder(exported=50.0), LOOSE)
    assert (first.before, first.reason) == (None, "is 40.0 dB worse than eager (6 dB are allowed)")
    assert find_loss(ladder(exported=0, quantized=34.0), LOOSE, drop_db=60) is None


FAT = Rungs(
    (
        rung("exported", 0),
        rung("exported", 0, method="encode"),
        rung("edge", 140.0, ("vulkan", "xnnpack")),
        rung("edge", 150.0, ("portable",)),
        rung("payload", None, ("vulkan",)),
        rung("payload", 139.0, ("xnnpack",)),
        rung("payload", 60.0, ("portable",)),
    )
)


def test_ways():
    """Each rung was made from the nearest one above that has its method and its specialization."""
    ways = [" ".join(rung.label for rung in way) for way in FAT.paths()]
    assert ways == [
        "exported",
        "exported edge.vulkan+xnnpack payload.vulkan",
        "exported edge.vulkan+xnnpack payload.xnnpack",
        "exported edge.portable payload.portable",
    ]
    assert FAT.paths()[0][0].method == "encode"
    loss = find_loss(FAT, LOOSE)
    assert (loss.rung.label, loss.before.label) == ("payload.portable", "edge.portable")


def test_json_round_trip():
    """Ladders and nodes survive JSON, as they are stored; None and text among them."""
    rungs = json.loads(json.dumps([rung.to_json() for rung in FAT.rungs]))
    assert Rungs(Rung.found(rungs)) == FAT
    worst = Worst(2, 0.5, 0.25, None, 0.75)
    nodes = NodeLosses(
        (
            NodeLoss("b", "aten.add.Tensor", ("add", "relu"), "block.0", "net.py:3 in forward", None, None, "NaN"),
            NodeLoss("a", "aten.mul.Tensor", ("mul",), "", "", worst, worst),
        ),
        operators=7,
    )
    assert NodeLosses.from_json(json.loads(json.dumps(nodes.to_json()))) == nodes
    assert len(nodes.nodes) == 2
    assert [node.node for node in nodes.losing] == ["b"]
    assert nodes.nodes[0].order < nodes.nodes[1].order


def search(needed, ranked):
    """All attempts of a search whose file passes once the `needed` worst layers are left out."""
    attempts = []
    while (count := next_count(attempts, ranked)) is not None:
        assert count not in [attempt.layers for attempt in attempts]
        attempts.append(ScoredFile(count, 0.5, count >= needed))
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


def test_order_of_files():
    """The smallest that passes is first, then the one that scores higher; where none passes, the highest score."""
    files = [ScoredFile(0, 0.5, size=10), ScoredFile(1, 0.7, size=20), ScoredFile(2, 0.6, size=5)]
    assert min(files, key=lambda file: file.order) == files[1]
    passing = [ScoredFile(0, 0.8, passes=True, size=9), ScoredFile(0, 0.9, passes=True, size=9)]
    passing.append(ScoredFile(3, 0.99, passes=True, size=30))
    assert sorted([*files, *passing], key=lambda file: file.order)[:3] == [passing[1], passing[0], passing[2]]


def test_label():
    """The layers in words, and that there are none."""
    found = FoundQuantization(("head", "stem"), ("head", "stem"), 12, (), 1)
    assert found.label == "2 of 12 layers (head, stem)"
    assert FoundQuantization((), (), 0, (), 1).label == "no layer"
    assert FoundQuantization((), (), 0, (), 1, {"smooth": True}).changes == "with smooth: true, "
