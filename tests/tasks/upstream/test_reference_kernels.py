"""Kernels in Python of executorch 1.5.1 that are wrong or missing, and what they compute with the patches."""

import sys
import typing

import pytest
import torch
from pteforge.tasks.upstream import cadence, cortex_m
from pteforge.tasks.upstream.reference_kernels import convolutions_of_integers, positive_scales


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("dilation", [1, 2, (2, 1)])
def test_convolutions_of_integers(dilation, groups):
    """Convolutions of integers with a dilation are exact; torch has none, and those of floats are as they were."""
    values, weight = torch.randint(-128, 128, (1, 4, 9, 9)), torch.randint(-128, 128, (8, 4 // groups, 3, 3))
    values, weight, bias = values.int(), weight.int(), torch.arange(8).int()
    options = {"dilation": dilation, "groups": groups, "padding": 1}
    if dilation != 1:
        with pytest.raises(RuntimeError, match="not implemented for 'Int'"):
            torch.nn.functional.conv2d(values, weight, bias, **options)
    with convolutions_of_integers():
        made = torch.nn.functional.conv2d(values, weight, bias, **options)
        single = torch.nn.functional.conv2d(values.float(), weight.float(), bias.float(), **options)
    assert made.dtype is torch.int32
    assert torch.equal(made.float(), single)  # sums are below 2 ** 24


def test_positive_scales():
    """Linear layers and ReLU in int8 have the sign of what they compute; without the patch, they do not."""
    cadence.override_of_typing()
    import executorch.backends.cadence.aot.ops_registrations
    import executorch.backends.cadence.aot.ref_implementations  # noqa: F401 - registers what is called below

    values, weight = torch.tensor([[10, 20]], dtype=torch.int8), torch.tensor([[3, 4]], dtype=torch.int8)
    arguments = (values, weight, torch.zeros(1, dtype=torch.int32), 0, 0, 1 << 30, 0, 0, None)
    linear = torch.ops.cadence.quantized_linear.per_tensor
    assert linear(*arguments).item() == -55
    with positive_scales():
        assert linear(*arguments).item() == 55  # (30 + 80) / 2


def test_override_of_typing():
    """`typing` has what the passes import, also before Python 3.12."""
    cadence.override_of_typing()
    assert callable(typing.override)


def test_the_quantizer_leaves_what_is_annotated():
    """Layers that are left out of quantization stay so, and nothing stands for TOSA afterwards."""
    from pteforge.tasks.quantize.pt2e import LeftOut
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer

    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3)).eval()
    program = torch.export.export(module, (torch.randn(1, 3, 8, 8),)).module(check_guards=False)
    prepared = prepare_pt2e(program, ComposableQuantizer([LeftOut(["0"]), cortex_m.make_quantizer()]))
    first, second = (node for node in prepared.graph.nodes if str(node.target) == "aten.conv2d.default")
    assert [layer.args[1].op for layer in (first, second)] == ["get_attr", "call_module"]  # the weights
    assert not isinstance(sys.modules.get("tosa_serializer"), cortex_m._Names)
