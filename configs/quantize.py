"""How a recipe quantizes exported programs (PT2E)."""

from __future__ import annotations

from typing import Self

from pydantic import Field, JsonValue, model_validator

from .base import FrozenModel
from .shapes import MethodName

_QUANTIZER = "Name of the target whose quantizer annotates the program."
_OPTIONS = "The quantizer's own options, such as per_channel or dynamic for xnnpack; checked before any work starts."


class QuantizerChoice(FrozenModel):
    """One of several quantizers."""

    quantizer: str = Field(min_length=1, description=_QUANTIZER)
    options: dict[str, JsonValue] = Field(default={}, description=_OPTIONS)


class Quantize(FrozenModel):
    """Post-training quantization of exported programs (PT2E), calibrated on the model's dataset or example inputs."""

    quantizer: str = Field(default="xnnpack", min_length=1, description=_QUANTIZER)
    options: dict[str, JsonValue] = Field(default={}, description=_OPTIONS)
    quantizers: tuple[QuantizerChoice, ...] = Field(
        default=(),
        description="Several quantizers in place of one, the first choice first: each takes of the operators that "
        "those before it have left.",
    )
    methods: tuple[MethodName, ...] | None = Field(
        default=None,
        min_length=1,
        description="The methods to quantize, of a model that has several; null: all. In each there must be something "
        "to quantize.",
    )

    @model_validator(mode="after")
    def _one_or_several(self) -> Self:
        if self.quantizers and self.model_fields_set & {"quantizer", "options"}:
            raise ValueError("has `quantizers` beside `quantizer` or `options`; write every quantizer in the list")
        return self

    @property
    def chosen(self) -> tuple[QuantizerChoice, ...]:
        """The quantizers in order, at least one."""
        return self.quantizers or (QuantizerChoice(quantizer=self.quantizer, options=self.options),)
