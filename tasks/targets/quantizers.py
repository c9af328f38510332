"""The quantizers that a recipe names: checked before any work starts, made where programs are quantized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...configs.quantize import Quantize
from ..params import TargetParams
from .find import find_quantizer_options, find_target_class

if TYPE_CHECKING:
    from torchao.quantization.pt2e.quantizer import Quantizer


def check_quantizers(quantize: Quantize | None) -> tuple[TargetParams, ...]:
    """The quantizers of a recipe in order, with their options filled in; none where it does not quantize.

    Raises:
        TargetError: no such target, it has no quantizer, the options do not fit, or it is not available here.
    """
    return tuple(
        TargetParams(
            name=each.quantizer,
            options=find_quantizer_options(each.quantizer, dict(each.options)).model_dump(mode="json"),
        )
        for each in (quantize.chosen if quantize else ())
    )


def make_quantizer(quantizers: Sequence[TargetParams]) -> Quantizer:
    """One quantizer that does what these do one after another. In worker processes only."""
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer  # noqa: PLC0415 - workers only

    made = [
        find_target_class(each.name).quantizer(find_quantizer_options(each.name, each.options)) for each in quantizers
    ]
    return made[0] if len(made) == 1 else ComposableQuantizer(made)


def fold_weights(quantizers: Sequence[TargetParams]) -> bool:
    """Whether quantized weights are stored as integers: not where one of the targets takes them otherwise."""
    return all(find_target_class(each.name).folds_weights for each in quantizers)
