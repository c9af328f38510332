"""Models that read files and environment variables that their source does not declare."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

SIZE = int(json.loads(Path("size.json").read_text(encoding="utf-8")))


def everything(outside: str) -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """A layer, after files were read in many ways. Reads `size.json` when it is imported."""
    torch.load("checkpoint.pt")
    torch.load("mapped.pt", mmap=True)
    safetensors.torch.load_file("weights.safetensors")
    np.memmap("table.bin", np.uint8)
    torch.jit.load("script.ts")
    np.fromfile(outside, np.uint8)
    if not Path("cache.bin").exists():
        Path("cache.bin").write_bytes(b"cached")
    Path("cache.bin").read_bytes()
    many = [path.read_bytes() for path in Path("many").glob("*.bin")]
    Path("scratch.bin").write_bytes(os.urandom(8) + b"".join(many))
    Path("scratch.bin").read_bytes()
    Path("override.bin").is_file()
    return _layer(), (torch.ones(2, 4),)


def variable() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """A layer of the width in a variable; reads a file outside of its folder."""
    os.environ["ITS_OWN"] = "1"
    Path(os.environ["ITS_OWN_FILE"]).read_bytes()
    return torch.nn.Linear(4, int(os.getenv("WIDTH", "3"))), (torch.ones(2, 4),)


def _layer() -> torch.nn.Module:
    """The same one every time, so that a changed input shows in no other stage than `export`."""
    layer = torch.nn.Linear(4, SIZE // SIZE)
    torch.nn.init.ones_(layer.weight)
    torch.nn.init.ones_(layer.bias)
    return layer
