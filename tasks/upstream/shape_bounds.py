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

It also refuses the functions of sizes that are written in Python, such as ``torch.sym_max`` (verifier.py), although
`EdgeToBackendOpsPass` gives them operators later, which the runtime has. Delete `_functions_of_sizes` once it knows
them.

Exir's operator for ``empty`` takes sizes that are constants (exir/passes/dim_order_ops_registry.py), and makes them so.
``full`` takes others, and what is in an empty tensor is nobody's business. Delete `_full_for_empty` once it takes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import ExportPass
from executorch.exir.passes.executorch_prim_ops_registry import _PYTHON_SYM_OPS_TO_EXECUTORCH_SYM_OPS
from executorch.exir.passes.memory_format_ops_pass import MemoryFormatOpsPass
from executorch.exir.verification import verifier
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
        with _whole_lists(), _functions_of_sizes(), _full_for_empty():
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


@contextmanager
def _functions_of_sizes() -> Iterator[None]:
    """Lets the verifier pass the functions of sizes that will become operators of the runtime's."""
    operators = verifier._EXECUTORCH_SYM_OPS  # noqa: SLF001 - see the module's docstring
    verifier._EXECUTORCH_SYM_OPS = operators | _PYTHON_SYM_OPS_TO_EXECUTORCH_SYM_OPS.keys()  # noqa: SLF001 - as above
    try:
        yield
    finally:
        verifier._EXECUTORCH_SYM_OPS = operators  # noqa: SLF001 - as above


@contextmanager
def _full_for_empty() -> Iterator[None]:
    """Fills empty tensors of dynamic sizes with zeros."""
    convert = MemoryFormatOpsPass.call_operator

    def call_operator(self: Any, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        if op is not exir_ops.edge.aten.empty.memory_format or all(type(size) is int for size in args[0]):
            return convert(self, op, args, kwargs, meta)
        options = {**kwargs, "dtype": meta["val"].dtype}
        options.pop("memory_format", None)
        return ExportPass.call_operator(self, exir_ops.edge.aten.full.default, (args[0], 0), options, meta)

    MemoryFormatOpsPass.call_operator = call_operator
    try:
        yield
    finally:
        MemoryFormatOpsPass.call_operator = convert
