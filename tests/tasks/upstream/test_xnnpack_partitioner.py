"""Values that leave a partition of XNNPACK together with copies of them."""

import pytest
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import lower_quantized, worst_sqnr
from pteforge.tests.zoo.networks import Function


def together(x):
    """A value, a copy of it, and a copy of that."""
    y = x * x
    return y, y.clone().clone()


def twice(x):
    """Two copies of a value that itself stays inside."""
    y = x * x
    return y.clone(), y.clone(), y - x


def alone(x):
    """One copy, which is used, too."""
    y = (x * x).clone()
    return y, y - x


@pytest.mark.parametrize(("function", "copies"), [(together, 2), (twice, 2), (alone, 0)])
def test_copies(lower_for, function, copies):
    """The file gives what eager gives. Copies are outside of the delegate only where one value would leave it twice."""
    import torch
    from executorch.runtime import Runtime

    x = torch.randn(2, 4)
    content = lower_for("xnnpack", Function(function), x)
    (method,) = read_pte(content).methods
    assert [delegate.id for delegate in method.delegates] == ["XnnpackBackend"]
    calls = dict(zip(method.operators, method.operator_calls, strict=True))
    assert calls == ({"dim_order_ops::_clone_dim_order.out": copies} if copies else {})
    outputs = Runtime.get().load_program(content).load_method("forward").execute([x])
    for made, expected in zip(outputs, function(x), strict=True):
        torch.testing.assert_close(made, expected)


@pytest.mark.parametrize(("dim", "keep", "delegated"), [(2, True, True), (2, False, False), (1, True, False)])
def test_largest_values(lower_for, dim, keep, delegated):
    """The file gives what eager gives, whether XNNPACK computes it or not."""
    import torch
    from executorch.runtime import Runtime

    module = Function(lambda x: x.max(dim=dim, keepdim=keep)[0])
    x = torch.randn(1, 3, 4, 5)
    content = lower_for("xnnpack", module, x)
    assert bool(read_pte(content).methods[0].delegates) == delegated
    (made,) = Runtime.get().load_program(content).load_method("forward").execute([x])
    torch.testing.assert_close(made, module(x))


@pytest.mark.parametrize(("shape", "delegated"), [((2, 4), False), ((2, 4, 9), False), ((2, 4, 5, 5), True)])
def test_prelu(lower_for, shape, delegated):
    """The file gives what eager gives, for one slope and for one of each channel, delegated or not."""
    import torch
    from executorch.runtime import Runtime

    x = torch.randn(*shape)
    for slopes in (1, 4):
        module = torch.nn.PReLU(slopes)
        content = lower_for("xnnpack", module, x)
        assert bool(read_pte(content).methods[0].delegates) >= delegated
        (made,) = Runtime.get().load_program(content).load_method("forward").execute([x])
        torch.testing.assert_close(made, module(x))


@pytest.mark.parametrize(
    ("options", "delegated"),
    [
        ({"scale_factor": 0.3}, False),
        ({"scale_factor": (2.0, 0.7)}, False),
        ({"scale_factor": 1.5}, True),
        ({"scale_factor": 0.3, "recompute_scale_factor": True}, True),
        ({"scale_factor": 0.3, "align_corners": True}, True),
        ({"size": (9, 7)}, True),
    ],
)
def test_bilinear_resizing(lower_for, options, delegated):
    """The file gives what eager gives; XNNPACK computes it where the scale is that of the sizes."""
    import torch
    from executorch.runtime import Runtime

    module = Function(lambda x: torch.nn.functional.interpolate(x, mode="bilinear", **options))
    x = torch.rand(1, 3, 64, 48)
    content = lower_for("xnnpack", module, x)
    operators = read_pte(content).methods[0].operators
    assert (not operators) == delegated
    (made,) = Runtime.get().load_program(content).load_method("forward").execute([x])
    torch.testing.assert_close(made, module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", [0, 1])
def test_padding_of_values_that_are_needed_in_floating_point(padding):
    """The file can be loaded, and `unfold` between int8 layers, which pads and then takes elements, is as in eager."""
    import torch

    class Unfolds(torch.nn.Module):
        """Convolutions of an image and of its patches."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Conv2d(4, 4, 1), torch.nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            patches = torch.nn.functional.unfold(self.first(x), 2, padding=padding, stride=2)
            return self.second(patches.reshape(2, 4, 4, -1))

    torch.manual_seed(0)
    network, x = Unfolds().eval(), torch.randn(2, 4, 8, 8)
    assert worst_sqnr(lower_quantized(network, x), network, x) > 30


def test_layers_whose_weight_is_written(lower_for):
    """A layer whose weight is state that the method overwrites is computed outside; XNNPACK crashes on it."""
    import torch
    from executorch.runtime import Runtime

    class Writes(torch.nn.Module):
        """Keeps its input as the weight of the next call."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(4, 16))
            self.layer = torch.nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = torch.nn.functional.linear(x, self.state)
            self.state.copy_(x)
            return made + self.layer(x)

    network = Writes().eval()
    content = lower_for("xnnpack", network, torch.ones(4, 16))
    program = Runtime.get().load_program(content)
    method = program.load_method("forward")
    method.execute([torch.ones(4, 16)])
    x = torch.randn(4, 16)
    (made,) = method.execute([x])
    with torch.no_grad():
        torch.testing.assert_close(made, x.sum(1, keepdim=True) + network.layer(x), rtol=1e-4, atol=1e-4)
