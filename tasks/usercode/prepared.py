"""Modules that users have prepared for quantization by PT2E, and trained or calibrated."""

from __future__ import annotations

import copy

import torch
from torch.fx import GraphModule
from torchao.quantization.pt2e import ObserverOrFakeQuantize, disable_observer, move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

from ...errors import SourceError
from ..upstream.torch_export import whole_dynamic_quantization


def is_prepared(module: torch.nn.Module) -> bool:
    """Whether a module comes from torchao's ``prepare_qat_pt2e`` or ``prepare_pt2e``."""
    return isinstance(module, GraphModule) and any(
        isinstance(child, ObserverOrFakeQuantize) for child in module.modules()
    )


def for_inference(module: torch.nn.Module) -> torch.nn.Module:
    """The module itself, put into inference mode, whether it is prepared or not.

    A prepared one keeps its fake quantization and stops observing: otherwise every call would change the scales that it
    was trained to. Its `eval` raises, since its graph has to change instead.
    """
    if not is_prepared(module):
        return module.eval()
    move_exported_model_to_eval(module)
    return module.apply(disable_observer)


def convert_prepared(module: GraphModule, what: str) -> GraphModule:
    """A copy of a prepared module with quantized operators.

    Raises:
        SourceError: it has not been trained or calibrated, so that it has no scales.
    """
    for name, child in module.named_modules():
        if isinstance(child, ObserverOrFakeQuantize) and _has_observed_nothing(child):
            raise SourceError(
                f"{what} has a module that was prepared for quantization, but {name} in it has observed nothing; train "
                "it, or run it on samples, before the builder returns it"
            )
    with torch.no_grad(), whole_dynamic_quantization():
        return convert_pt2e(copy.deepcopy(module))


def _has_observed_nothing(module: torch.nn.Module) -> bool:
    lowest = getattr(getattr(module, "activation_post_process", module), "min_val", None)
    return isinstance(lowest, torch.Tensor) and (lowest.numel() == 0 or bool(lowest.isinf().all()))
