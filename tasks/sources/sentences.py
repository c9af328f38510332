"""Embeddings of sentences, by the layers that sentence-transformers puts after an encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import torch
from safetensors.torch import load_file

from ...errors import SourceError
from .find import MODULES
from .processors import find_file

_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_ACTIVATIONS = {"Identity": torch.nn.Identity, "Tanh": torch.nn.Tanh, "ReLU": torch.nn.ReLU, "GELU": torch.nn.GELU}
_FARTHEST = -1e9  # what max sees of padding


class SentenceHead(torch.nn.Module):
    """Pools states of tokens, and projects and normalizes the result as a repository says.

    Without ``modules.json``, states are averaged, and the mean has length 1.
    """

    def __init__(self, repo: Mapping[str, Any]) -> None:
        """Raises SourceError if the repository has a layer of another kind."""
        super().__init__()
        listed = find_file(repo, MODULES)
        modules = json.loads(listed.read_text()) if listed else []
        self.pooling, self.normalizes = "mean", not modules
        self.layers = torch.nn.Sequential()
        for module in modules:
            kind = str(module["type"]).rpartition(".")[2]
            if kind == "Transformer" and not module["path"]:
                continue
            if kind == "Pooling":
                self.pooling = _pooling(_read(repo, module["path"]))
            elif kind == "Dense":
                self.layers.extend(_dense(repo, module["path"]))
            elif kind == "Normalize":
                self.normalizes = True
            else:
                raise SourceError(f"{MODULES}: the module {kind!r} at {module['path']!r} is not known")

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Takes states [batch, tokens, size] and their mask [batch, tokens]; returns [batch, dimensions]."""
        weights = mask.to(states.dtype).unsqueeze(-1)
        if self.pooling == "cls":
            pooled = states[:, 0]
        elif self.pooling == "max":
            pooled = (states * weights + (1 - weights) * _FARTHEST).amax(1)
        elif self.pooling == "last":  # the last one that the mask has, on whichever side padding is
            after = weights.flip(1).cumsum(1).flip(1)
            pooled = (states * weights * (after == 1)).sum(1)
        else:
            pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        embedding = self.layers(pooled)
        if self.normalizes:
            embedding = embedding / embedding.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        return embedding


def _read(repo: Mapping[str, Any], path: str) -> dict[str, Any]:
    file = find_file(repo, str(PurePosixPath(path) / "config.json"))
    if file is None:
        raise SourceError(f"{MODULES}: there is no {path}/config.json")
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def _pooling(config: Mapping[str, Any]) -> str:
    modes = [name for name, used in config.items() if name.startswith("pooling_mode_") and used]
    named = [_MODES.get(mode, mode) for mode in modes] or [str(config.get("pooling_mode", "mean"))]
    if len(named) > 1 or named[0] not in _MODES.values():
        raise SourceError(f"{MODULES}: pooling by {' and '.join(named)} is not known; {', '.join(_MODES.values())} are")
    return named[0]


def _dense(repo: Mapping[str, Any], path: str) -> list[torch.nn.Module]:
    config, file = _read(repo, path), find_file(repo, str(PurePosixPath(path) / "model.safetensors"))
    activation = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    if file is None or activation not in _ACTIVATIONS:
        missing = (
            f"no {path}/model.safetensors" if file is None else f"the activation {activation!r}, which is not known"
        )
        raise SourceError(f"{MODULES}: the module at {path!r} has {missing}")
    weights = {name.removeprefix("linear."): value for name, value in load_file(file).items()}
    layer = torch.nn.Linear(*reversed(weights["weight"].shape), bias="bias" in weights)
    layer.load_state_dict(weights)
    return [layer, _ACTIVATIONS[activation]()]
