"""Models of torchvision."""

from __future__ import annotations

from typing import Any

import torch

from ...configs.base import did_you_mean
from ...configs.metadata import INTERPOLATIONS
from ...errors import SourceError
from ..upstream.torch_export import import_torchvision

import_torchvision()
import torchvision


class Model:
    """An image model, with the interface of ExecuTorch's ``EagerModelBase``."""

    def __init__(self, name: str, weights: str | None = None) -> None:
        """Loads the model.

        Args:
            name: as ``torchvision.models.list_models`` lists it.
            weights: name of its weights; None for random ones.
        """
        known = torchvision.models.list_models()
        if name not in known:
            raise SourceError(f"torchvision has no model {name!r}{did_you_mean(name, known)}")
        self._name, self._loaded = name, weights is not None
        chosen = torchvision.models.get_model_weights(name)
        if weights is not None and weights not in chosen.__members__:
            raise SourceError(f"{name} has no weights {weights!r}{did_you_mean(weights, [*chosen.__members__])}")
        self._weights = chosen[weights] if weights else next(iter(chosen))
        made = torchvision.models.get_model(name, weights=self._weights if weights else None)
        self.model = made.eval().requires_grad_(requires_grad=False)

    def get_eager_model(self) -> torch.nn.Module:
        return self.model

    def get_example_inputs(self) -> tuple[torch.Tensor]:
        """One image as the transforms of the model's weights leave it, [1, 3, height, width]."""
        transforms = self._weights.transforms()
        image = torch.zeros(3, 512, 512, dtype=torch.uint8)
        return (torch.randn(1, *transforms(image).shape),)

    def get_metadata(self) -> dict[str, Any]:
        """What the model's weights say: their classes, and their transforms where those are of images."""
        found: dict[str, Any] = {"name": self._name, "source": f"torchvision:{self._name}"}
        if self._loaded:
            found["revision"] = self._weights.name
            if labels := self._weights.meta.get("categories"):
                found["labels"] = list(labels)
        transforms = self._weights.transforms()
        if hasattr(transforms, "crop_size"):
            (size,) = transforms.crop_size
            found["image"] = {
                "size": [size, size],
                "resize": transforms.resize_size[0],
                "interpolation": how if (how := transforms.interpolation.value) in INTERPOLATIONS else None,
                "channels": "RGB",
                "rescale": 1 / 255,
                "mean": list(transforms.mean),
                "std": list(transforms.std),
            }
        return found
