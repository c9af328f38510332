"""Scales that are moved between the inputs and the weights of layers."""

from __future__ import annotations

import pytest
import torch
from pteforge.tasks.quantize.smoothing import smooth
from torch import nn

MUL = torch.ops.aten.mul.Tensor


def large(weight, *channels):
    """Makes some channels of a weight large."""
    with torch.no_grad():
        weight[list(channels)] *= 50
    return weight


class Norm(nn.Module):
    """A norm with two layers after it, and, if there is a residual, another use."""

    def __init__(self, norm, *, residual=False):
        super().__init__()
        self.norm, self.first, self.second, self.residual = norm, nn.Linear(32, 24), nn.Linear(32, 8), residual
        large(norm.weight, 3, 9)

    def forward(self, x):
        y = self.norm(x)
        return self.first(y), self.second(y), y if self.residual else x


class Convolutions(nn.Module):
    """A depthwise convolution, an activation, and a convolution in one place."""

    def __init__(self, activation, **options):
        super().__init__()
        self.depthwise, self.pointwise = nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1, **options)
        self.activation = activation
        large(self.depthwise.weight, 2)

    def forward(self, x):
        return self.pointwise(self.activation(self.depthwise(x)))


class Gated(nn.Module):
    """A layer whose inputs are a product of what two other ones compute."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(32, 16), nn.Linear(32, 16), nn.Linear(16, 8)
        large(self.up.weight, 3)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Steps(nn.Module):
    """A layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Shared(nn.Module):
    """A table that is also a layer's weight, and a layer whose inputs lie otherwise than a convolution's."""

    def __init__(self):
        super().__init__()
        self.table, self.layer, self.conv = nn.Linear(8, 8, bias=False), nn.Linear(8, 8), nn.Conv2d(8, 4, 1)
        self.register_buffer("scale", large(torch.ones(8, 1, 1), 2))

    def forward(self, x):
        return self.conv(self.layer(x * self.scale)), self.table(x) @ self.table.weight


INPUTS = {"rows": (4, 32), "image": (1, 8, 9, 9), "steps": (3, 16), "square": (1, 8, 8, 8)}


@pytest.mark.parametrize(
    ("build", "inputs", "layers", "operators"),
    [
        (lambda: Norm(nn.LayerNorm(32)), "rows", {"first", "second"}, 0),
        (lambda: Norm(nn.RMSNorm(32)), "rows", {"first", "second"}, 1),  # one operator, whose weight is no factor
        (lambda: Norm(nn.LayerNorm(32), residual=True), "rows", {"first", "second"}, 1),
        (lambda: Convolutions(nn.ReLU()), "image", {"pointwise"}, 0),
        (lambda: Convolutions(nn.Identity()), "image", {"pointwise"}, 0),
        (lambda: Convolutions(nn.ReLU6()), "image", {"pointwise"}, 1),
        (lambda: Convolutions(nn.ReLU(), groups=2), "image", set(), 0),
        (Shared, "square", {"conv", "layer"}, 2),
    ],
)
@pytest.mark.parametrize("by_row", [False, True])
def test_same_values(build, inputs, layers, operators, by_row):
    """In floating point, outputs are the same; norms and layers before have the scales, or an operator has them."""
    torch.manual_seed(0)
    net, x = build().eval(), torch.randn(INPUTS[inputs])
    program = torch.export.export(net, (x,))
    module = program.module(check_guards=False)
    before, weights = module(x), {name: weight.clone() for name, weight in net.named_parameters()}
    smoothed, added = smooth(module, [(x,), (x * 2,)], by_row=by_row, leaves=lambda _: False)
    assert {layer.name for layer in smoothed} >= layers
    assert not layers or all(layer.left < 0.8 for layer in smoothed)
    assert [node.target for node in added] == [MUL] * operators
    assert all(torch.allclose(*pair, atol=1e-3, rtol=1e-3) for pair in zip(flat(module(x)), flat(before), strict=True))
    assert all(torch.equal(weights[name], weight) for name, weight in net.named_parameters())


def flat(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def test_layers_that_are_left():
    """Excluded layers stay, and those that lose nothing; scales of inputs that are zero are finite."""
    torch.manual_seed(0)
    net, x = Norm(nn.LayerNorm(32)).eval(), torch.randn(4, 32)
    module = torch.export.export(net, (x,)).module(check_guards=False)
    assert smooth(module, [(x,)], by_row=True, leaves=lambda _: True) == ([], [])
    signs = nn.Sequential(nn.Linear(32, 16)).eval()
    signs[0].weight.data.sign_()
    module = torch.export.export(signs, (x,)).module(check_guards=False)
    assert smooth(module, [(x.sign(),)], by_row=False, leaves=lambda _: False) == ([], [])
    dead = x.clone()
    dead[:, ::2] = 0
    dead[:, 1] *= 1000
    layer = nn.Sequential(nn.Linear(32, 16)).eval()
    module = torch.export.export(layer, (dead,)).module(check_guards=False)
    smoothed, _ = smooth(module, [(dead,)], by_row=False, leaves=lambda _: False)
    assert [each.name for each in smoothed] == ["0"]
    assert torch.allclose(module(dead), layer(dead), atol=1e-3)
    assert all(value.isfinite().all() for value in module.state_dict().values())


def test_a_factor_takes_the_scales():
    """Of a product of what two layers compute, one of them is divided."""
    torch.manual_seed(0)
    net, x = Gated().eval(), torch.randn(4, 32)
    module = torch.export.export(net, (x,)).module(check_guards=False)
    smoothed, added = smooth(module, [(x,)], by_row=False, leaves=lambda node: node.args[1].target != "down.weight")
    assert ([layer.name for layer in smoothed], added) == (["down"], [])
    assert torch.allclose(module(x), net(x), atol=1e-3)
    assert not torch.equal(module.up.weight, net.up.weight)


def test_a_layer_that_is_used_twice():
    """Inputs of all calls count, and all are divided."""
    torch.manual_seed(0)
    net, x = Steps().eval(), torch.randn(3, 16)
    x[:, 5] *= 100
    module = torch.export.export(net, (x,)).module(check_guards=False)
    smoothed, added = smooth(module, [(x,)], by_row=True, leaves=lambda _: False)
    assert ([each.name for each in smoothed], len(added)) == (["layer"], 2)
    assert torch.allclose(module(x), net(x), atol=1e-3)
