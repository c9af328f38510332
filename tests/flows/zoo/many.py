"""A zoo of many tiny models: `zoo_of` writes it down, `tiny` builds each of its models."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
import yaml
from torch import nn

KINDS = ("linear", "mlp", "gated", "conv", "separable")
FAT = {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}]}


class Gated(nn.Module):
    """Two layers whose results are multiplied."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(8, width), nn.Linear(8, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(x) * torch.sigmoid(self.gate(x))


def tiny(kind: str = "linear", width: int = 4) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A model of one of `KINDS`."""
    networks: dict[str, Any] = {
        "linear": lambda: nn.Linear(8, width),
        "mlp": lambda: nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, 4)),
        "gated": lambda: Gated(width),
        "conv": lambda: nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU()),
        "separable": lambda: nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, width, 1), nn.Hardswish()),
    }
    images = {"conv": 1, "separable": 2}
    example = torch.randn(1, images[kind], 8, 8) if kind in images else torch.randn(2, 8)
    return networks[kind]().eval(), (example,)


def zoo_of(count: int, wider: Iterable[int] = ()) -> dict[str, Any]:
    """A zoo file of so many models, some of them `wider` than usual, by number; one in 50 does not build.

    One in 50 exports as another function than it is, one in 8 also has a fat file.
    """
    models: dict[str, Any] = {}
    wide = set(wider)
    for number in range(count):
        kind, width = KINDS[number % len(KINDS)], 4 + number // len(KINDS) + 100 * (number in wide)
        faulty = {7: "faulty:raises", 23: "faulty:unfaithful"}.get(number % 50)
        source = faulty or {"builder": "many:tiny", "kwargs": {"kind": kind, "width": width}}
        recipes = ["portable-fp32", "xnnpack-fp32"] + ["fat"] * (number % 8 == 0)
        models[f"{kind}_{number:03}"] = {"source": source, "recipes": recipes}
    return {"version": 1, "name": "night", "recipes": {"fat": FAT}, "models": models}


if __name__ == "__main__":
    sys.stdout.write(yaml.safe_dump(zoo_of(*map(int, sys.argv[1:2]), map(int, sys.argv[2:])), sort_keys=False))
