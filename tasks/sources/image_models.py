"""Models of timm and of torchvision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...configs.base import did_you_mean
from ...configs.metadata import INTERPOLATIONS
from ...errors import SourceError
from ..upstream.torch_export import import_torchvision

import_torchvision()
import torchvision


class TimmModel:
    """An image model of timm, with the interface of ExecuTorch's ``EagerModelBase``."""

    def __init__(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool = True) -> None:
        """Loads a model that ``timm.list_models`` lists; `kwargs` are more arguments of ``timm.create_model``."""
        import timm  # noqa: PLC0415 - models of torchvision do without

        if not timm.is_model(name):
            raise SourceError(f"timm has no model {name!r}{did_you_mean(name.partition('.')[0], timm.list_models())}")
        self._name, self._pretrained, self._data = name, pretrained, timm.data
        self.model = timm.create_model(name, pretrained=pretrained, **kwargs).eval().requires_grad_(requires_grad=False)

    def get_eager_model(self) -> torch.nn.Module:
        return self.model

    def get_example_inputs(self) -> tuple[torch.Tensor]:
        """One image of the size that the model was trained for, [1, channels, height, width]."""
        size = self._data.resolve_model_data_config(self.model)["input_size"]
        return (torch.randn(1, *size),)

    def get_metadata(self) -> dict[str, Any]:
        """What the configuration of its weights says (``timm.models.PretrainedCfg``)."""
        weights, how = self.model.pretrained_cfg, self._data.resolve_model_data_config(self.model)
        *_, height, width = how["input_size"]
        resize = math.floor(height / how["crop_pct"])
        metadata = {
            "name": self._name,
            "architecture": weights.get("architecture"),
            "source": f"timm:{self._name}",
            "image": _preprocessing([height, width], resize, how["interpolation"], how["mean"], how["std"]),
        }
        if self._pretrained:
            metadata |= {"license": weights.get("license"), "revision": weights.get("tag"), "labels": self._labels()}
        return {name: value for name, value in metadata.items() if value}

    def _labels(self) -> list[str] | None:
        """Names of ImageNet's classes, if it was trained for them."""
        if named := self.model.pretrained_cfg.get("label_names"):
            return list(named)
        subset = self._data.infer_imagenet_subset(self.model)
        return self._data.ImageNetInfo(subset).label_descriptions() if subset else None


class TorchvisionModel:
    """An image model of torchvision, with the interface of ExecuTorch's ``EagerModelBase``."""

    def __init__(self, name: str, weights: str | None = None) -> None:
        """Loads a model that ``torchvision.models.list_models`` lists; without `weights`, they are random."""
        names = torchvision.models.list_models()
        if name not in names:
            raise SourceError(f"torchvision has no model {name!r}{did_you_mean(name, names)}")
        self._name, self._loaded = name, weights is not None
        chosen = torchvision.models.get_model_weights(name)
        if weights is not None and weights not in chosen.__members__:
            raise SourceError(f"{name} has no weights {weights!r}{did_you_mean(weights, [*chosen.__members__])}")
        self._weights = chosen[weights] if weights else next(iter(chosen))
        model = torchvision.models.get_model(name, weights=self._weights if weights else None)
        self.model = model.eval().requires_grad_(requires_grad=False)

    def get_eager_model(self) -> torch.nn.Module:
        return self.model

    def get_example_inputs(self) -> tuple[torch.Tensor]:
        """One image as the transforms of the model's weights leave it, [1, 3, height, width]."""
        image = torch.zeros(3, 512, 512, dtype=torch.uint8)
        return (torch.randn(1, *self._weights.transforms()(image).shape),)

    def get_metadata(self) -> dict[str, Any]:
        """What the model's weights say: their classes, and their transforms where those are of images."""
        metadata: dict[str, Any] = {"name": self._name, "source": f"torchvision:{self._name}"}
        if self._loaded:
            metadata["revision"] = self._weights.name
            if labels := self._weights.meta.get("categories"):
                metadata["labels"] = list(labels)
        how = self._weights.transforms()
        if hasattr(how, "crop_size"):
            (size,) = how.crop_size
            interpolation = how.interpolation.value
            metadata["image"] = _preprocessing([size, size], how.resize_size[0], interpolation, how.mean, how.std)
        return metadata


def _preprocessing(
    size: list[int], resize: int, interpolation: str, mean: Sequence[float], std: Sequence[float]
) -> dict[str, Any]:
    """Fields of `configs.metadata.ImagePreprocessing`."""
    return {
        "size": size,
        "resize": resize,
        "interpolation": interpolation if interpolation in INTERPOLATIONS else None,
        "channels": "RGB",
        "rescale": 1 / 255,
        "mean": list(mean),
        "std": list(std),
    }
