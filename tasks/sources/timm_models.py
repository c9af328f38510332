"""Models of timm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...configs.base import did_you_mean
from ...configs.metadata import INTERPOLATIONS
from ...errors import SourceError
from ..upstream.torch_export import import_torchvision

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
            raise SourceError(f"timm has no model {name!r}{did_you_mean(name.partition('.')[0], timm.list_models())}")
        self._name, self._pretrained = name, pretrained
        self.model = timm.create_model(name, pretrained=pretrained, **kwargs).eval().requires_grad_(requires_grad=False)

    def get_eager_model(self) -> torch.nn.Module:
        return self.model

    def get_example_inputs(self) -> tuple[torch.Tensor]:
        """One image of the size that the model was trained for, [1, channels, height, width]."""
        size = timm.data.resolve_model_data_config(self.model)["input_size"]
        return (torch.randn(1, *size),)

    def get_metadata(self) -> dict[str, Any]:
        """What the configuration of its weights says (``timm.models.PretrainedCfg``)."""
        weights, how = self.model.pretrained_cfg, timm.data.resolve_model_data_config(self.model)
        *_, height, width = how["input_size"]
        found = {
            "name": self._name,
            "architecture": weights.get("architecture"),
            "source": f"timm:{self._name}",
            "image": {
                "size": [height, width],
                "resize": math.floor(height / how["crop_pct"]),
                "interpolation": how["interpolation"] if how["interpolation"] in INTERPOLATIONS else None,
                "channels": "RGB",
                "rescale": 1 / 255,
                "mean": list(how["mean"]),
                "std": list(how["std"]),
            },
        }
        if self._pretrained:
            found |= {"license": weights.get("license"), "revision": weights.get("tag"), "labels": self._labels()}
        return {name: value for name, value in found.items() if value}

    def _labels(self) -> list[str] | None:
        """Names of ImageNet's classes, if it was trained for them."""
        if named := self.model.pretrained_cfg.get("label_names"):
            return list(named)
        subset = timm.data.infer_imagenet_subset(self.model)
        return timm.data.ImageNetInfo(subset).label_descriptions() if subset else None
