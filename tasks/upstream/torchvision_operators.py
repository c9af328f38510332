"""torchvision's wheel for CUDA with torch's for CPUs: its native library does not load, and its import fails.

It registers fake kernels for operators that only the library defines; only models that detect objects need them. For
torchvision 0.28 and torch 2.13; delete once torchvision can be imported without its library.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision() -> None:
    """Imports torchvision if it is installed; where its library does not load, with operators that have no kernels."""
    if find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", _SCHEMA)
        for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
        import_module("torchvision")
