"""Programs that compute positions and indices are quantized, though a quantizer makes floats of the numbers in them."""

import warnings

import pytest

with warnings.catch_warnings():  # these modules warn when they are imported
    warnings.simplefilter("ignore")
    import torch
    from pteforge.tasks.quantize.pt2e import quantize
    from pteforge.tasks.targets import TargetParams
    from pteforge.tasks.targets.find import make_quantizer
    from pteforge.tests.zoo.networks import Embedded
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    return torch.export.export(Embedded().eval(), (torch.arange(5),), strict=False)


@pytest.mark.parametrize("target", ["xnnpack", "vulkan"])
def test_integers_stay_integers(program, target):
    """The quantized program computes about what the model does, and its integer arithmetic is as it was."""
    example = (torch.arange(5),)
    quantizers = (TargetParams(name=target),)
    prepared = prepare_pt2e(program.module(check_guards=False), make_quantizer(quantizers))
    with pytest.raises(IndexError, match="tensors used as indices"):
        prepared(*example)
    quantized, *_ = quantize(program, example, [example], quantizers)
    given, expected = quantized.module()(*example), program.module()(*example)
    assert (given - expected).abs().max() < 0.05 * expected.abs().max()
    assert integer_arithmetic(quantized) == integer_arithmetic(program) == [("mul", 3), ("add", 2)]
    assert any("dequantize" in str(node.target) for node in quantized.graph.nodes)


def integer_arithmetic(program):
    """What is done with integers, and with which number."""
    return [
        (str(node.target).split(".")[1], node.args[1])
        for node in program.graph.nodes
        if node.target in (torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor)
        and not node.meta["val"].is_floating_point()
    ]
