"""Biases that make up for what rounded weights lose on average."""

from __future__ import annotations

import pytest
import torch
from pteforge.tasks.quantize.pt2e import quantize
from pteforge.tasks.targets import TargetParams
from torch import nn

OPERATORS = {
    "linear": (nn.Linear(24, 6), (8, 24)),
    "linear without a bias": (nn.Linear(24, 6, bias=False), (8, 24)),
    "linear over rows": (nn.Linear(24, 6), (2, 4, 24)),
    "linear of one row": (nn.Linear(24, 6), (1, 24)),
    "linear without a batch": (nn.Linear(24, 6), (24,)),
    "convolution": (nn.Conv2d(6, 6, 3), (2, 6, 8, 8)),
    "depthwise": (nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), (2, 6, 8, 8)),
    "one dimension": (nn.Conv1d(6, 6, 3, stride=2), (2, 6, 16)),
    "transposed": (nn.ConvTranspose2d(6, 6, 3, stride=2), (2, 6, 8, 8)),
}


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("name", OPERATORS)
def test_means_are_kept(name, per_channel):
    """Of each output channel, for inputs whose mean is far from zero."""
    torch.manual_seed(0)
    layer, shape = OPERATORS[name]
    with torch.no_grad():
        nn.init.uniform_(layer.weight, 0.01, 0.015)
        layer.weight.view(-1)[::7] = 4.0  # so that less than half a step is left of all others
    samples = [[torch.rand(shape) + 2] for _ in range(8)]
    program = torch.export.export(nn.Sequential(layer).eval(), tuple(samples[0]))
    quantizers = (TargetParams(name="xnnpack", options={"per_channel": per_channel}),)
    axis = -1 if isinstance(layer, nn.Linear) else 1
    off = []
    for corrects in (False, True):
        quantized, changes = quantize(program, samples[0], samples, quantizers, corrects=corrects)
        errors = [(quantized.module()(*sample) - layer(*sample)).movedim(axis, 0).reshape(6, -1) for sample in samples]
        off.append(torch.cat(errors, 1).mean(1).abs().max())
        assert [bias.name for bias in changes["corrected"]] == (["0"] if corrects else [])
    assert off[1] < 0.3 * off[0]


def test_layers_that_are_called_twice():
    """They get one bias, as they have one weight."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    with torch.no_grad():
        layer.weight.view(-1)[::7] = 4.0
    samples = [[torch.rand(4, 8) + 2] for _ in range(4)]
    program = torch.export.export(nn.Sequential(layer, nn.ReLU(), layer).eval(), tuple(samples[0]))
    quantizers = (TargetParams(name="xnnpack", options={}),)
    quantized, changes = quantize(program, samples[0], samples, quantizers, corrects=True)
    assert len(changes["corrected"]) == 1
    layers = [node for node in quantized.graph.nodes if str(node.target) == "aten.linear.default"]
    assert len({node.args[2] for node in layers}) == 1


def test_layers_that_are_left_out():
    """They keep their biases, as do those whose weights are exact."""
    network = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(8))
    samples = [[torch.rand(4, 8)] for _ in range(2)]
    program = torch.export.export(network, tuple(samples[0]))
    quantizers = (TargetParams(name="xnnpack", options={}),)
    _, changes = quantize(program, samples[0], samples, quantizers, exclude=["1"], corrects=True)
    assert changes["corrected"] == ()


def test_layers_that_the_quantizer_does_not_take():
    """They keep their biases: with computed scales, XNNPACK's quantizer takes no convolutions of single channels."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3, groups=8)).eval()
    for layer in network:
        with torch.no_grad():
            layer.weight.view(-1)[::7] = 4.0
    samples = [[torch.rand(2, 8, 9, 9) + 2] for _ in range(2)]
    program = torch.export.export(network, tuple(samples[0]))
    for dynamic, names in ((False, ["0", "1"]), (True, ["0"])):
        quantizers = (TargetParams(name="xnnpack", options={"dynamic": dynamic}),)
        _, changes = quantize(program, samples[0], samples, quantizers, corrects=True)
        assert [bias.name for bias in changes["corrected"]] == names


def test_weights_that_are_computed():
    """Such as a transposed one, which the quantizer rounds after that: their layers keep their biases."""

    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8, 8))

        def forward(self, x):
            return nn.functional.linear(x, self.weight.t())

    samples = [[torch.rand(4, 8) + 2] for _ in range(2)]
    program = torch.export.export(Transposed().eval(), tuple(samples[0]))
    _, changes = quantize(program, samples[0], samples, (TargetParams(name="xnnpack", options={}),), corrects=True)
    assert changes["corrected"] == ()
