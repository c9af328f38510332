"""A model that comes with files."""

from __future__ import annotations

from pathlib import Path

import torch
from pteforge.configs.model import MethodDefinition, ModelDefinition


def net(words: str) -> ModelDefinition:
    """A layer; its words are delivered as they are in the file of this name."""
    method = MethodDefinition(torch.nn.Linear(4, 3), [(torch.ones(1, 4),)])
    content = Path(words).read_bytes()
    return ModelDefinition({"forward": method}, assets={"words.json": content, "labels.txt": b"cat\ndog\n"})
