"""How ATen programs become Edge programs."""

from __future__ import annotations

from pydantic import Field, StrictBool

from .base import FrozenModel


class EdgeOptions(FrozenModel):
    """How ATen programs become Edge programs (``executorch.exir.EdgeCompileConfig``)."""

    preserve_operators: tuple[str, ...] = Field(
        default=(), description="ATen operators to leave whole that would be decomposed, such as aten.linear.default."
    )
    check_ir_validity: StrictBool = Field(default=True, description="Check that the program is in the Edge dialect.")
    skip_dim_order: StrictBool = Field(default=False, description="Leave out the operators that carry dim order.")
    core_aten_ops_exception_list: tuple[str, ...] = Field(
        default=(),
        description="Operators that are not core ATen and may stay, such as aten.linalg_vector_norm.default; the rest "
        "is checked.",
    )
