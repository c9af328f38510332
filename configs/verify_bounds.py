"""How far a produced file may be from eager, and what a model changes about it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, Strict, StrictBool, model_serializer

from .base import FrozenModel

Number = Annotated[float, Strict()]
"""A number, and not text that looks like one."""


class VerifyBounds(FrozenModel):
    """What a produced file's outputs must keep to, against eager's, on every example input and every drawn one.

    The defaults suit fp32: XNNPACK and the portable kernels stay above 130 dB on small networks, a computation that
    silently ran in fp16 would come to about 65 dB.
    """

    max_abs_error: Number | None = Field(
        default=None, ge=0, description="Largest absolute difference of any element; null: not checked."
    )
    max_relative_error: Number | None = Field(
        default=None,
        ge=0,
        description="Largest difference of any element relative to eager's; null: not checked. Elements near zero make "
        "it large where nothing is wrong.",
    )
    min_sqnr_db: Number | None = Field(
        default=80.0,
        description="Least signal-to-quantization-noise ratio of any output, in decibels; null: not checked. Of "
        "outputs in float16 no more than 40 is asked, of those in bfloat16 no more than 22.",
    )
    drawn_inputs: Annotated[int, Strict()] = Field(
        default=2,
        ge=0,
        description="Random inputs to try per method besides the examples, drawn within the bounds of dynamic shapes.",
    )


class Verification(VerifyBounds):
    """How a recipe's files are judged: the bounds, and what else is to be found out."""

    ladder: StrictBool = Field(
        default=False,
        description="true: besides the file, run every program on the way to it (exported, edge, ...) and say how far "
        "each is from eager. Recipes that quantize always do.",
    )

    @property
    def bounds(self) -> VerifyBounds:
        """The bounds alone."""
        return VerifyBounds.model_validate({name: getattr(self, name) for name in VerifyBounds.model_fields})


class VerifyOverrides(VerifyBounds):
    """The bounds that a model changes: only what is written counts, the rest is the recipe's."""

    @model_serializer(mode="wrap")
    def _only_what_is_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keeps `model_fields_set` across a round trip through JSON."""
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}

    def applied_to(self, bounds: VerifyBounds) -> VerifyBounds:
        """`bounds` with the written fields replaced."""
        return bounds.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
