"""Two networks of MLPerf Tiny whose random weights let their inputs through, unlike those of ExecuTorch's classes."""

from __future__ import annotations

from typing import Any

import torch
from executorch.examples.models.mlperf_tiny.ds_cnn import DSCNNKWSModel
from executorch.examples.models.mlperf_tiny.mobilenet_v1_025 import MobileNetV1025Model
from torch import nn


def ds_cnn() -> tuple[nn.Module, tuple[Any, ...]]:
    """Keyword spotting."""
    return _varied(DSCNNKWSModel())


def mobilenet_v1_025() -> tuple[nn.Module, tuple[Any, ...]]:
    """Visual wake words."""
    return _varied(MobileNetV1025Model())


def _varied(model: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    """Batch norms get the statistics of random inputs, as in training, so that no layer's values vanish."""
    module, inputs = model.get_eager_model(), model.get_example_inputs()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # an average of what it is given
    with torch.no_grad():
        module.train()(torch.randn(8, *inputs[0].shape[1:]))
    return module.eval(), inputs
