"""Operators by the names that recipes write."""

from __future__ import annotations

import pytest
from pteforge.errors import TargetError


def test_names():
    """Namespace, operator, overload; without an overload the default one."""
    import torch
    from pteforge.tasks.stages.operators import find_operators

    assert find_operators(["aten.hardswish", "aten.add.Tensor", "aten.hardswish.default"]) == [
        torch.ops.aten.hardswish.default,
        torch.ops.aten.add.Tensor,
        torch.ops.aten.hardswish.default,
    ]


@pytest.mark.parametrize(
    "name",
    ["aten.no_such.default", "aten.add.NoSuch", "nowhere.add", "aten", "", "aten.", "aten.add.Tensor.more", "_a.b"],
)
def test_unknown_names(name):
    """Whatever is not an operator is refused with a hint; also by the check that runs before any stage does."""
    from pteforge.tasks.stages.entry import check_operators
    from pteforge.tasks.stages.operators import find_operators

    with pytest.raises(TargetError, match=r"namespace\.operator\.overload") as caught:
        find_operators(["aten.add.Tensor", name])
    assert f"unknown operator {name!r}" in str(caught.value)
    with pytest.raises(TargetError):
        check_operators([(name, "edge.preserve_operators")])


def test_known_names_pass_the_check():
    """The check says nothing about what is there."""
    from pteforge.tasks.stages.entry import check_operators

    check_operators([("aten.hardswish.default", "edge.preserve_operators")])
