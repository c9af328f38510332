"""Torch 2.13 narrows the bounds of dynamic sizes when fake kernels compare them; with this patch it does not.

Exir runs programs on fake tensors again and again, and torch takes each comparison of a size for a fact about it. The
fake convolution, for example, asks whether a batch has 16 or more items to choose a CPU algorithm. The example's batch
has fewer, so the upper bound becomes 15: memory is planned for that, and the file rejects sizes that the model was
exported for. Relies on `ShapeEnv._refine_ranges` (torch/fx/experimental/symbolic_shapes.py). Delete once fake kernels
do not refine ranges while exir runs its passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sympy
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
        yield
    finally:
        ShapeEnv._refine_ranges = refine  # noqa: SLF001 - as above
