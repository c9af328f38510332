"""What differs for single methods of a payload."""

from __future__ import annotations

from typing import Self

from pydantic import Field, JsonValue, StrictBool, model_validator

from .base import FrozenModel
from .edge import EdgeOptions


class MethodOptions(FrozenModel):
    """How one method is lowered, where that differs from the rest of its payload."""

    delegate: StrictBool = Field(
        default=True, description="false: no partitioner sees the method, and the portable kernels run all of it."
    )
    target: str | None = Field(
        default=None,
        min_length=1,
        description="Name of the target whose partitioners see the method; null: that of the specialization.",
    )
    options: dict[str, JsonValue] | None = Field(
        default=None, description="Options of that target for the method; null: those of the specialization."
    )
    edge: EdgeOptions | None = Field(
        default=None, description="How the method becomes an Edge program; null: as the recipe says."
    )
    alloc_graph_input: StrictBool | None = Field(
        default=None, description="Plan memory for the method's inputs; null: as `compile` says."
    )
    alloc_graph_output: StrictBool | None = Field(
        default=None, description="Plan memory for the method's outputs; null: as `compile` says."
    )

    @model_validator(mode="after")
    def _nothing_for_no_partitioner(self) -> Self:
        if not self.delegate and (self.target is not None or self.options is not None):
            raise ValueError("`delegate: false` leaves nothing for `target` and `options` to say")
        return self
