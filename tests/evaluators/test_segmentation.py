"""Segmentation by masks: intersections and unions over all samples, as scikit-learn's Jaccard score."""

import numpy as np
import pytest
from pteforge.errors import SourceError
from pteforge.evaluators import mean_iou
from pteforge.tests.evaluators.conftest import echo


def test_as_scikit_learn_counts(code):
    """The score is the macro average of the Jaccard scores of all pixels; ignored ones do not count."""
    from sklearn.metrics import jaccard_score

    module = code(
        "torch.manual_seed(0)\n"
        "masks = torch.randint(0, 4, (3, 6, 5))\nmasks[0, 0] = 255\n"
        "scores = torch.nn.functional.one_hot(masks.clamp(max=3), 5).permute(0, 3, 1, 2)\n"
        "scores = scores + 0.8 * torch.randn(3, 5, 6, 5)\n"
        "data = [(one[None], mask) for one, mask in zip(scores, masks)]\n"
        "numbers = [(one[None].argmax(1), mask) for one, mask in zip(scores, masks)]\n"
    )
    made = __import__(module)
    wanted, found = made.masks.flatten(), made.scores.argmax(1).flatten()
    expected = jaccard_score(wanted[wanted != 255], found[wanted != 255], average="macro", zero_division=0)
    assert 0.2 < expected < 0.9
    assert mean_iou(echo, dataset=f"{module}:data") == pytest.approx(expected)
    assert mean_iou(echo, dataset=f"{module}:numbers") == pytest.approx(expected)


def test_folders_and_one_class(tmp_path):
    """Images and masks of one name belong together; a logit for the only class is positive in it, at any size."""
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "images" / "a.npy", np.array([[[[2.0, -2.0]]]], dtype=np.float32))
    np.save(tmp_path / "masks" / "a.npy", np.array([[1, 1, 0, 0], [1, 0, 0, 0]], dtype=np.uint8))
    assert mean_iou(echo, folder=str(tmp_path)) == pytest.approx((3 / 4 + 4 / 5) / 2)
    np.save(tmp_path / "images" / "b.npy", np.zeros((1, 1, 1, 2), dtype=np.float32))
    with pytest.raises(SourceError, match=r"b.npy has no mask"):
        mean_iou(echo, folder=str(tmp_path))


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ("(torch.ones(1, 2, 4, 4), torch.zeros(3, 4, 4))", r"a mask is \(3, 4, 4\)"),
        ("(torch.ones(2, 4, 4), torch.zeros(4, 4))", r"float32 \(2, 4, 4\) for a mask of \(4, 4\)"),
        ("(torch.ones(1, 2, 2).long(), torch.zeros(4, 4))", r"int64 \(1, 2, 2\) for a mask of \(4, 4\)"),
        ("(torch.ones(1, 2, 4, 4), torch.full((4, 4), 255))", r"all pixels of all masks are 255"),
    ],
)
def test_no_segmentation(sample, message, code):
    """Outputs and masks of other shapes, and masks without classes, are named."""
    with pytest.raises(SourceError, match=message):
        mean_iou(echo, dataset=f"{code(f'data = [{sample}]')}:data")
