"""Buckets of a model in the caller's memory."""

import pteforge
import pytest
import torch
from pteforge.errors import InputError, SourceError
from torch.export import Dim

SHAPES = {"input": {2: Dim("height", min=8, max=64)}}


def net():
    layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 4)).eval()


@pytest.mark.parametrize(
    ("buckets", "problem"),
    [
        ({"height": [32, 8]}, "buckets of method 'forward': .*ascending order"),
        ({"encode": {"height": [8]}}, "valid tuple|encode"),
        ({"width": [8]}, "no dynamic dimension 'width'; .*it has height"),
    ],
)
def test_buckets_that_are_none(buckets, problem):
    """They are checked as a zoo's are."""
    image = (torch.randn(1, 3, 16, 8),)
    with pytest.raises(InputError, match=problem):
        pteforge.export(net(), image, recipe="portable-fp32", dynamic_shapes=SHAPES, buckets=buckets)


def test_buckets_of_a_program():
    """What is exported already has the sizes that it has."""
    program = torch.export.export(net(), (torch.randn(1, 3, 16, 8),))
    with pytest.raises(SourceError, match="method 'forward' is exported already"):
        pteforge.export(program, recipe="portable-fp32", buckets={"height": [8]})


@pytest.mark.slow
def test_quantized(tmp_path):
    """Buckets of a quantized model are calibrated on samples of their own, and have examples of their sizes."""
    torch.manual_seed(0)
    model, image = net(), torch.randn(1, 3, 16, 8)
    calibration = {f"forward_{size}": [(torch.randn(1, 3, size, 8),) for _ in range(4)] for size in (8, 32)}
    result = pteforge.export(
        model, (image,), recipe="xnnpack-int8-static", dynamic_shapes=SHAPES, buckets={"height": [8, 32]},
        calibration=calibration, store=tmp_path,
    )  # fmt: skip
    assert result.methods == ("forward_8", "forward_32")
    assert [inputs[0].shape[2] for method in result.methods for inputs in result.example_inputs(method)] == [8, 32]
    assert set(result.figures.calibration.values()) == {"4 samples"}
    (small,) = result.run_method()
    torch.testing.assert_close(small, model(result.example_inputs("forward_8")[0][0]), rtol=0.1, atol=0.1)
    large = torch.randn(1, 3, 32, 8)
    torch.testing.assert_close(result.run_method("forward", (large,))[0], model(large), rtol=0.1, atol=0.1)
