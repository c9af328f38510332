"""Parts of outputs that one figure for the whole hides."""

import pytest
import torch
from pteforge.configs.verification import VerifyBounds
from pteforge.tasks.results.figures import lost_parts, summarize
from pteforge.tasks.usercode.inputs import StoredCase

BOUNDS = VerifyBounds(min_sqnr_db=20)
GENERATOR = torch.Generator().manual_seed(0)
BOXES, SCORES = torch.rand(1, 4, 60, generator=GENERATOR) * 640, torch.rand(1, 8, 60, generator=GENERATOR)


def quantized(values):
    """Values after eight bits with one scale for all of them."""
    scale = (values.max().clamp(min=0) - values.min().clamp(max=0)) / 255
    return (values / scale).round() * scale


def parts_of(*outputs, bounds=BOUNDS, file=quantized):
    """The worst parts of a file's outputs."""
    from pteforge.tasks.verify.compare import compare_all, worst_parts

    stored = [StoredCase(f"example {number}", (), [eager]) for number, eager in enumerate(outputs)]
    cases = [case for each in stored for case in compare_all([file(each.expected[0])], each, method="forward")]
    assert all(case.sqnr_db > 20 for case in cases)
    return summarize(cases, parts=worst_parts(cases, bounds)).parts


@pytest.mark.parametrize(
    ("outputs", "dimension", "entries"),
    [
        pytest.param([torch.cat([BOXES, SCORES], 1)], 1, ((4, 11),), id="channels"),
        pytest.param([torch.cat([BOXES, SCORES], 1).mT], 2, ((4, 11),), id="columns"),
        pytest.param([torch.cat([BOXES[0, 0], SCORES[0].flatten()])], 0, ((60, 539),), id="flat"),
        pytest.param([torch.stack([BOXES[0, 0], SCORES[0, 0]])], 0, ((1, 1),), id="stacked"),
        pytest.param([torch.cat([BOXES, SCORES / 50], 1)], 1, ((4, 11),), id="rarely"),
        pytest.param(
            [torch.cat([BOXES[..., at], SCORES[:, :1, at]], 1) for at in range(9)], 1, ((4, 4),), id="several cases"
        ),
        pytest.param(
            [torch.cat([BOXES[:, :2], SCORES[:, :1]] * 5, 1)],
            1,
            tuple((at, at) for at in range(2, 15, 3)),
            id="in turns",
        ),
        pytest.param([torch.cat([BOXES, 2.3 + SCORES / 3], 1)], 1, ((4, 11),), id="constant in the file"),
    ],
)
def test_parts_that_are_lost(outputs, dimension, entries):
    """What has a range of its own and is lost in a scale for all is named, whatever the layout, and fails."""
    (part,) = parts_of(*outputs)
    assert (part.dimension, part.entries, part.lost) == (dimension, entries, True)
    assert len(list(lost_parts([part], BOUNDS))) == 1
    for unbounded in ({"min_part_sqnr_db": None}, {"min_sqnr_db": None}):
        assert not list(lost_parts([part], BOUNDS.model_copy(update=unbounded)))


def test_how_a_part_reads():
    """It says which entries, how far they are from eager's, and what they are in the file."""
    (part,) = parts_of(torch.cat([BOXES, SCORES], 1))
    assert str(part).startswith("method 'forward', output 0, dimension 1, 4 to 11 of 12: 0.0 dB, all zeros; eager's ")


DICE = torch.Generator().manual_seed(0)
CHANNELS = torch.randn(64, generator=DICE).mul(1.5).exp()[None, :, None, None]
IMAGES = torch.randn(4, 64, 8, 8, generator=DICE)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param((IMAGES * CHANNELS).relu(), id="channels of a layer"),
        pytest.param(torch.randn(8, 10, generator=DICE).mul(3).softmax(1), id="probabilities"),
        pytest.param(torch.tensor([[0.9, 0.8, 1e-4], [0.7, 0.9, 2e-4], [0.1, 0.6, 3e-4]]), id="rare labels"),
        pytest.param(torch.cat([BOXES, torch.ones(1, 1, 60)], 1), id="constants"),
        pytest.param(torch.cat([BOXES, torch.zeros(1, 1, 60)], 1), id="zeros"),
        pytest.param(torch.cat([BOXES, SCORES * 1e-6], 1), id="rounding"),
        pytest.param(torch.randn(2, 5, 3000, generator=DICE), id="logits"),
        pytest.param(torch.cat([BOXES, BOXES / 20], 1), id="coarse"),
    ],
)
def test_parts_that_are_no_part(output):
    """Channels of one layer, rare classes, constants and rounding are no reason to refuse a file."""
    assert not list(lost_parts(parts_of(output), BOUNDS))


def test_parts_of_exact_files():
    """A file that computes what eager does has no such part."""
    assert parts_of(torch.cat([BOXES, SCORES], 1), file=lambda values: values * (1 + 1e-6)) == ()
