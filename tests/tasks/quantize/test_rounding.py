"""Weights that are rounded by what that does to samples."""

from __future__ import annotations

import pytest
import torch
from pteforge.errors import TargetError
from pteforge.tasks.quantize.module_transforms import transform_copy
from pteforge.tasks.quantize.rounding import ObservedCalls, rounded
from pteforge.tasks.quantize.torchao_configs import TorchaoParams
from torch import nn
from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_

FIELDS = {"weight_dtype": "int4", "weight_granularity": {"per_group": 32}}


def dependent(rows, features):
    """Inputs whose features depend on each other, as those of a trained network do."""
    return torch.randn(rows, features // 4) @ torch.randn(features // 4, features) + 0.1 * torch.randn(rows, features)


def nearest(weight, bits=4):
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight.clone())
    quantize_(layer, IntxWeightOnlyConfig(getattr(torch, f"int{bits}"), PerGroup(32)))
    return layer.weight


def lost(weight, quantized, inputs):
    return ((weight - quantized.dequantize()) @ inputs.T).norm()


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("features", [32, 192])
def test_outputs_change_less(bits, features):
    """Of samples and of other inputs like them; integers are in the range of their bits."""
    torch.manual_seed(0)
    both = dependent(512, features)
    samples, others = both[:256], both[256:]
    weight = torch.randn(48, features)
    quantized = nearest(weight, bits)
    before = [lost(weight, quantized, inputs) for inputs in (samples, others)]
    integers, scales = rounded(weight, quantized, samples.T @ samples)
    quantized.qdata.copy_(integers)
    quantized.scale.copy_(scales)
    after = [lost(weight, quantized, inputs) for inputs in (samples, others)]
    assert all(now < 0.62 * then for now, then in zip(after, before, strict=True))
    assert -(1 << bits - 1) <= int(quantized.qdata.min())
    assert int(quantized.qdata.max()) < 1 << bits - 1


@pytest.mark.parametrize("moments", [torch.eye(64), torch.zeros(64, 64), torch.diag(torch.arange(64.0))])
def test_inputs_that_do_not_depend_on_each_other(moments):
    """Nothing can make up for what is left out: each weight becomes the nearest integer, of scales that lose less."""
    weight = torch.randn(8, 64)
    quantized = nearest(weight)
    integers, scales = rounded(weight, quantized, moments)
    steps = weight.unflatten(1, (scales.shape[1], -1)) * (1.0 / scales[..., None])  # as torchao computes it
    assert torch.equal(integers, steps.round().clamp(-8, 7).to(torch.int8).flatten(1))
    before = lost(weight, quantized, moments.sqrt())
    quantized.qdata.copy_(integers)
    quantized.scale.copy_(scales)
    assert lost(weight, quantized, moments.sqrt()) <= before
    assert torch.equal(scales, nearest(weight).scale) == (not moments.any())


class Block(nn.Module):
    """Layers after each other, one that is not called, and a count of calls."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(64, 96), nn.Linear(96, 32), nn.Linear(32, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.second(self.first(x).relu())


class Step(nn.Module):
    """Another method with the layers of a block."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return self.block(x[None])[0]


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_layers_of_methods(monkeypatch, memory):
    """All methods have the same integers, however many layers are observed at a time; observing changes nothing."""
    monkeypatch.setattr("pteforge.tasks.quantize.rounding._MEMORY", memory)
    torch.manual_seed(1)
    block, inputs = Block(), dependent(128, 64).reshape(2, 64, 64)
    modules = {"forward": block, "step": Step(block)}
    calls = ObservedCalls({"forward": block}, {"forward": lambda: [((x,), {}) for x in inputs]}, ["samples"])
    found = {}
    for rounding in ("nearest", "gptq"):
        params = TorchaoParams(config="Int8DynamicActivationIntxWeightConfig", fields=FIELDS, rounding=rounding)
        for method, module in modules.items():
            quantized, matched = transform_copy(module, [params], calls=calls)
            assert matched == {0}
            found[rounding, method] = {
                name.removeprefix("block."): value for name, value in quantized.state_dict().items()
            }
    assert block.calls == 0
    with torch.no_grad():
        lost = {rounding: block(inputs) - _called(found[rounding, "forward"], inputs) for rounding, _ in found}
    assert lost["gptq"].norm() < 0.8 * lost["nearest"].norm()
    for name, value in found["gptq", "forward"].items():
        assert torch.equal(value, found["gptq", "step"][name])
        if name.startswith("unused") or "scale" in name:
            assert torch.equal(value, found["nearest", "forward"][name])


def _called(state, inputs):
    """What a block computes with quantized weights."""

    def layer(name, x):
        parts = {key.rpartition(".")[2]: value for key, value in state.items() if key.startswith(f"{name}.")}
        inner = {key: value for key, value in parts.items() if key != "bias"}
        integers = next(value for value in inner.values() if value.dtype == torch.int8 and value.shape[1] > 4)
        scale = next(value for value in inner.values() if value.is_floating_point())
        return x @ (integers * scale.repeat_interleave(32, 1)).T + parts["bias"]

    return layer("second", layer("first", inputs).relu())


def test_only_linear_layers():
    """A function that chooses another layer is refused."""
    block = nn.Sequential(nn.Embedding(4, 64), nn.Linear(64, 4))
    calls = ObservedCalls({"forward": block}, {"forward": lambda: [((torch.tensor([1]),), {})]}, [])
    params = TorchaoParams(
        config="IntxWeightOnlyConfig",
        fields={"weight_dtype": "int4", "granularity": {"per_group": 32}},
        rounding="gptq",
        layers=("linear", "embedding"),
    )
    with pytest.raises(TargetError, match="'0' is none"):
        transform_copy(block, [params], calls=calls)


def test_scales_by_weights_alone():
    """`rounding: hqq` is torchao's: fewer weights lose much of themselves, and none needs samples."""
    from pteforge.configs.quantize import TorchaoTransform
    from pteforge.tasks.lowering.params import _transform_params

    torch.manual_seed(0)
    layer = nn.Linear(64, 48, bias=False)
    layer.weight = nn.Parameter(torch.distributions.StudentT(2.5).sample((48, 64)))
    fields = {"weight_dtype": "int4", "granularity": {"per_group": 32}}
    errors = {}
    for rounding in ("nearest", "hqq"):
        transform = TorchaoTransform(torchao="intx_weight_only", params=fields, rounding=rounding)
        made, *_ = transform_copy(layer, [_transform_params(None, transform)])
        errors[rounding] = (made.weight.dequantize() - layer.weight).abs().pow(0.7).mean()
    assert errors["hqq"] < 0.95 * errors["nearest"]
