"""Zoos of any number of small models, no two of them alike. Also the module with their builders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_zoo(folder: Path, models: int, *, alignment: int = 128, **changes: dict[str, Any]) -> Path:
    """Writes a zoo of so many models with two recipes each, for portable kernels and for XNNPACK.

    `changes` are arguments of `build` by name of the model, `alignment` is an option of the recipe for XNNPACK.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model{number:04}" for number in range(models)]
    sources = {
        name: {"builder": f"{Path(__file__).stem}:build", "kwargs": {"number": number, **changes.get(name, {})}}
        for number, name in enumerate(names)
    }
    zoo = {
        "version": 1,
        "python_path": [str(Path(__file__).parent)],
        "defaults": {"recipes": ["portable-fp32", "xnnpack"]},
        "recipes": {
            "xnnpack": {"specializations": [{"target": "xnnpack"}], "compile": {"segment_alignment": alignment}}
        },
        "models": {name: {"source": source} for name, source in sources.items()},
    }
    file = folder / "zoo.yaml"
    file.write_text(json.dumps(zoo, indent=1))
    return file


def build(number: int, seed: int = 0, width: int = 0) -> tuple[Any, tuple[Any, ...]]:
    """A convolutional network, a perceptron, a transformer layer or an LSTM, by `number`.

    Args:
        number: decides what it is, and how wide and deep.
        seed: of its weights.
        width: how much wider it is.
    """
    import torch
    from torch import nn

    torch.manual_seed(seed)
    size, depth = 16 + 4 * (number // 4 % 16) + width, 2 + number // 64 % 4
    match number % 4:
        case 0:
            blocks = [
                layer
                for block in range(2 * depth)
                for layer in (nn.Conv2d(size if block else 3, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU())
            ]
            return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, 10)), (
                torch.randn(1, 3, 32, 32),
            )
        case 1:
            layers = [layer for _ in range(2 * depth) for layer in (nn.Linear(4 * size, 4 * size), nn.ReLU())]
            return nn.Sequential(*layers), (torch.randn(1, 4 * size),)
        case 2:
            layer = nn.TransformerEncoderLayer(4 * size, 4, 8 * size, batch_first=True)
            return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), (torch.randn(1, 16, 4 * size),)
        case _:
            return nn.LSTM(size, size, depth, batch_first=True), (torch.randn(1, 8, size),)
