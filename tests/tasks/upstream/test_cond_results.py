"""Results of ``cond`` that are needed while or after other control flow runs."""

from __future__ import annotations

from typing import Any

import pytest


def _choose(x: Any, condition: Any, chosen: Any = lambda v: v.sin() + 1, otherwise: Any = lambda v: v.cos()) -> Any:
    import torch

    return torch.cond(condition.sum() > 0, chosen, otherwise, (x,))


def _choose_another(x: Any, condition: Any) -> Any:
    return _choose(x, condition, lambda v: v * v, lambda v: v - 5)


def siblings(x, y):
    """Two results that are added, the first of which is returned, too."""
    first = _choose(x, x)
    return first + _choose_another(y, y), first


def chained(x, y):
    """A result that the next operator takes."""
    return _choose(_choose(x, x), y, lambda v: v.sin() * v.cos() + v, lambda v: (v - 5) * v + 1)


def viewed(x, y):
    """A view of a result."""
    first = _choose(x, x).reshape(5, 4)
    return first, _choose_another(y, y)


def nested(x, y):
    """Two in a branch, and another one after that."""
    import torch

    def inner(v, w):
        first = _choose(v, w)
        return first * _choose_another(w, v) + first

    outer = torch.cond(x.sum() > 0, inner, lambda v, w: v - w, (x, y))
    return outer + _choose(y, y)


def mapped(x, y):
    """A loop after it."""
    from functorch.experimental.control_flow import map as map_rows

    first = _choose(x, x)
    return first + map_rows(lambda row: row.sin() * row.cos() + row.exp(), y), first


def in_turn(x, y):
    """A result that is used up before the next one is made."""
    first = _choose(x, x).exp()
    return first + _choose_another(y, y)


def _lower(function: Any, target: str) -> tuple[bytes, bytes]:
    """The file, and that of ExecuTorch by itself."""
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from pteforge.tasks.programs.emission import to_executorch
    from pteforge.tasks.targets.find import find_target
    from pteforge.tests.zoo.networks import Function

    program = torch.export.export(Function(function), (torch.ones(4, 5), torch.ones(4, 5)))
    partitioners = list(find_target(target, {}).partitioners())
    managers = [to_edge_transform_and_lower(program, partitioner=partitioners) for _ in range(2)]
    made = to_executorch(managers[0], ExecutorchBackendConfig())
    return bytes(made.buffer), bytes(managers[1].to_executorch().buffer)


def _is_right(content: bytes, function: Any) -> bool:
    """Whether a file gives what eager gives, whichever branches are taken."""
    import torch
    from executorch.runtime import Runtime
    from torch.utils import _pytree as pytree

    method = Runtime.get().load_program(content).load_method("forward")
    generator = torch.Generator().manual_seed(0)
    for signs in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        inputs = tuple(sign * torch.rand(4, 5, generator=generator) for sign in signs)
        pairs = zip(method.execute(inputs), pytree.tree_leaves(function(*inputs)), strict=True)
        if not all(torch.allclose(made, expected, atol=1e-5) for made, expected in pairs):
            return False
    return True


@pytest.mark.parametrize("target", ["portable", pytest.param("xnnpack", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", [siblings, chained, viewed, nested, mapped])
def test_results_stay(function, target):
    """The file gives what eager gives, whatever is delegated."""
    made, _ = _lower(function, target)
    assert _is_right(made, function)


@pytest.mark.parametrize(
    ("function", "target"),
    [(siblings, "portable"), (chained, "portable"), (nested, "portable"), (mapped, "portable"), (viewed, "xnnpack")],
)
def test_executorch_fails_by_itself(function, target):
    """Once this fails, so does the reason for the patch."""
    _, plain = _lower(function, target)
    assert not _is_right(plain, function)


def test_results_that_are_used_up():
    """Nothing is copied where nothing is overwritten."""
    made, plain = _lower(in_turn, "portable")
    assert made == plain
    assert _is_right(made, in_turn)
