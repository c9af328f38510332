"""Torch 2.13 narrows the bounds of dynamic sizes when fake kernels compare them; with this patch it does not.

Exir runs programs on fake tensors again and again, and torch takes each comparison of a size for a fact about it. The
fake convolution, for example, asks whether a batch has 16 or more items to choose a CPU algorithm. The example's batch
has fewer, so the upper bound becomes 15: memory is planned for that, and the file rejects sizes that the model was
exported for. Relies on `ShapeEnv._refine_ranges` (torch/fx/experimental/symbolic_shapes.py). Delete once fake kernels
do not refine ranges while exir runs its passes.

Exir's verifier (executorch 1.5.1, exir/verification/arg_validator.py) takes the first tensor of an operator that
returns a list of them, such as ``split``, for the list, and asks for its length. That makes a constant of its first
size, whatever the program was exported for. Here it sees a list with the list inside. Delete `_whole_lists` once it
does not use the length of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from executorch.exir.verification.arg_validator import EdgeOpArgValidator
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextmanager
def declared_bounds() -> Iterator[None]:
    """Keeps the bounds of input sizes as declared.

    Bounds of sizes that depend on data are left to torch: checks in the model's code narrow them.
    """
    refine = ShapeEnv._refine_ranges  # noqa: SLF001 - see the module's docstring

    def refine_ranges(env: ShapeEnv, expr: sympy.Basic) -> None:
        if not expr.free_symbols <= env.backed_var_to_val.keys():
            refine(env, expr)

    ShapeEnv._refine_ranges = refine_ranges  # noqa: SLF001 - as above
    try:
        with _whole_lists():
            yield
    finally:
        ShapeEnv._refine_ranges = refine  # noqa: SLF001 - as above


@contextmanager
def _whole_lists() -> Iterator[None]:
    """Lets the verifier see what operators return that return one list of tensors."""
    check = EdgeOpArgValidator.call_function

    def call_function(validator: EdgeOpArgValidator, target: Any, args: Any, kwargs: Any) -> Any:
        returns: Any = getattr(getattr(target, "_schema", None), "returns", ())
        meta = validator.node.meta
        if len(returns) != 1 or returns[0].type != torch.ListType.ofTensors():
            return check(validator, target, args, kwargs)
        tensors = meta["val"]
        meta["val"] = [tensors]
        try:
            return check(validator, target, args, kwargs)
        finally:
            meta["val"] = tensors

    EdgeOpArgValidator.call_function = call_function
    try:
        yield
    finally:
        EdgeOpArgValidator.call_function = check
