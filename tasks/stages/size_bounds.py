"""Dynamic sizes keep the bounds that they were exported with, whatever lowering looks at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@contextmanager
def declared_bounds() -> Iterator[None]:
    """Keeps the bounds of the sizes of inputs from being narrowed by what passes ask of a size.

    Exir runs programs on fake tensors again and again. What a kernel's fake asks of a size is taken for a fact about
    it: that of a convolution asks whether a batch is of 16 or more to choose a CPU algorithm, the example's is not, and
    from then on the upper bound is 15. Memory is planned for that, and the file refuses what the model was exported
    for. Bounds of sizes that depend on data are left to torch: checks in the model's code narrow them.

    Relies on `ShapeEnv._refine_ranges` (torch/fx/experimental/symbolic_shapes.py, torch 2.13).
    """
    refine = ShapeEnv._refine_ranges  # noqa: SLF001 - see above

    def refine_ranges(env: ShapeEnv, expr: sympy.Basic) -> None:
        if not expr.free_symbols <= env.backed_var_to_val.keys():
            refine(env, expr)

    ShapeEnv._refine_ranges = refine_ranges  # noqa: SLF001 - see above
    try:
        yield
    finally:
        ShapeEnv._refine_ranges = refine  # noqa: SLF001 - see above
