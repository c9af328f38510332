"""Values that leave a partition of XNNPACK together with copies of them."""

from __future__ import annotations

import pytest
from pteforge.artifacts.pte.reader import read_pte
from pteforge.tasks.targets import find_target


def beside(x):
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


@pytest.fixture
def lower():
    """The `.pte` of a function of one tensor."""
    import torch
    from executorch.exir import to_edge_transform_and_lower

    class Function(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def forward(self, x):
            return self.function(x)

    def lower(function, x):
        exported = torch.export.export(Function(function), (x,))
        partitioners = list(find_target("xnnpack").partitioners())
        return to_edge_transform_and_lower(exported, partitioner=partitioners).to_executorch().buffer

    return lower


@pytest.mark.parametrize(("function", "copies"), [(beside, 2), (twice, 2), (alone, 0)])
def test_copies(lower, function, copies):
    """The file gives what eager gives. Copies are outside of the delegate only where one value would leave it twice."""
    import torch
    from executorch.runtime import Runtime

    x = torch.randn(2, 4)
    content = lower(function, x)
    (method,) = read_pte(content).methods
    assert [delegate.id for delegate in method.delegates] == ["XnnpackBackend"]
    calls = dict(zip(method.operators, method.operator_calls, strict=True))
    assert calls == ({"dim_order_ops::_clone_dim_order.out": copies} if copies else {})
    outputs = Runtime.get().load_program(content).load_method("forward").execute([x])
    for made, expected in zip(outputs, function(x), strict=True):
        torch.testing.assert_close(made, expected)
