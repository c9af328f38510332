"""Remainders of integers in tensors."""

from __future__ import annotations

from typing import Any

import pytest

SIGNED = ["int8", "int16", "int32", "int64"]


def _lower(function: Any, *inputs: Any) -> tuple[bytes, bytes]:
    """The file, and that of ExecuTorch by itself."""
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from pteforge.tasks.programs.emission import to_executorch
    from pteforge.tests.zoo.networks import Function

    managers = [to_edge_transform_and_lower(torch.export.export(Function(function), inputs)) for _ in range(2)]
    made = to_executorch(managers[0], ExecutorchBackendConfig())
    return bytes(made.buffer), bytes(managers[1].to_executorch().buffer)


def _run(content: bytes, *inputs: Any) -> Any:
    from executorch.runtime import Runtime

    (made,) = Runtime.get().load_program(content).load_method("forward").execute(inputs)
    return made.tolist()


def _operands(dtype: str) -> Any:
    """The extremes are such that a sum or a product with the divisor overflows int8."""
    import torch

    dividends = [7, -7, 5, -5, 0, 100, -100, -128, 127, -128]
    divisors = [2, 2, -3, 3, 5, 120, 7, 7, -5, -1]
    return tuple(torch.tensor(values).to(getattr(torch, dtype)) for values in (dividends, divisors))


@pytest.mark.parametrize("dtype", SIGNED)
def test_of_tensors(dtype):
    """They have the divisor's sign. Once ExecuTorch's by itself have it, the reason for the patch is gone."""
    operands = _operands(dtype)
    expected = (operands[0] % operands[1]).tolist()
    made, plain = _lower(lambda x, y: x % y, *operands)
    assert _run(made, *operands) == expected
    assert _run(plain, *operands) != expected


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("divisor", [3, -3])
def test_by_numbers(dtype, divisor):
    """As above, where the divisor is a number."""
    dividends, _ = _operands(dtype)
    made, plain = _lower(lambda x: x % divisor, dividends)
    assert _run(made, dividends) == (dividends % divisor).tolist()
    assert _run(plain, dividends) != (dividends % divisor).tolist()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_others_stay_the_same(dtype):
    """Of floating point numbers and of unsigned integers, the kernel computes what eager does."""
    operands = [operand.abs() for operand in _operands("int16")]
    operands = [operand.to(_operands(dtype)[0].dtype) for operand in operands]
    made, plain = _lower(lambda x, y: x % y, *operands)
    assert made == plain
    assert _run(made, *operands) == (operands[0] % operands[1]).tolist()
