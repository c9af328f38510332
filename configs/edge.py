"""How ATen programs become Edge programs."""

from __future__ import annotations

from pydantic import Field, JsonValue, StrictBool

from .base import FrozenModel
from .sources import BuilderName


class EdgePass(FrozenModel):
    """A pass over Edge programs, named by where it is imported from."""

    callable: BuilderName = Field(
        description="package.module:name of a pass class, or of a function that gives a pass or a list of them. "
        "Importable from python_path or from the environment."
    )
    kwargs: dict[str, JsonValue] = Field(default={}, description="Keyword arguments of the callable.")
    takes_program: StrictBool = Field(
        default=False,
        description="Call it with the method's name and its ATen program first, as functions that stand under "
        "edge_transform_passes of executorch.export are.",
    )


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
    passes: tuple[EdgePass, ...] = Field(
        default=(),
        description="Passes to run over each method's Edge program before it is partitioned, in order, after the "
        "target's own. They run again when their code changes.",
    )
