"""Models of timm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...configs.base import did_you_mean
from ..upstream.torchvision_operators import import_torchvision

import_torchvision()
import timm


class Model:
    """An image model, with the interface of ExecuTorch's ``EagerModelBase``."""

    def __init__(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool = True) -> None:
        """Loads the model.

        Args:
            name: as ``timm.list_models`` lists it, with or without the name of its weights.
            kwargs: more arguments of ``timm.create_model``.
            pretrained: whether to load its weights; else they are random.
        """
        if not timm.is_model(name):
            raise ValueError(f"timm has no model {name!r}{did_you_mean(name.partition('.')[0], timm.list_models())}")
        self.model = timm.create_model(name, pretrained=pretrained, **kwargs).eval().requires_grad_(requires_grad=False)

    def get_eager_model(self) -> torch.nn.Module:
        return self.model

    def get_example_inputs(self) -> tuple[torch.Tensor]:
        """One image of the size that the model was trained for, [1, channels, height, width]."""
        size = timm.data.resolve_model_data_config(self.model)["input_size"]
        return (torch.randn(1, *size),)
