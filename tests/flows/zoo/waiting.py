"""Builders that named pipes in the zoo's folder control."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch


def patient() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Writes its process id into the pipe `running` and reads the pipe `proceed` to its end."""
    if Path("running").exists():
        Path("running").write_text(f"{os.getpid()}\n")
        Path("proceed").read_text()
    return torch.nn.Linear(3, 2), (torch.ones(1, 3),)


def prompt() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return torch.nn.Linear(4, 2), (torch.ones(1, 4),)


class Batches:
    """Samples for `nets:linear`. The second one reads the pipe `proceed`, if it exists, to its end."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        for number in range(3):
            if number == 1 and Path("proceed").exists():
                Path("proceed").read_text()
            yield (torch.full((2, 4), float(number)),)
