"""Models of torchvision."""

from __future__ import annotations

import torch

from ...configs.base import did_you_mean
from ..upstream.torchvision_operators import import_torchvision

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
            raise ValueError(f"torchvision has no model {name!r}{did_you_mean(name, known)}")
        chosen = torchvision.models.get_model_weights(name)
        if weights is not None and weights not in chosen.__members__:
            raise ValueError(f"{name} has no weights {weights!r}{did_you_mean(weights, [*chosen.__members__])}")
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
