"""A trained network with samples of its input, and how outputs score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """A module with samples of its input."""

    module: nn.Module
    samples: Sequence[tuple[Tensor, ...]]
    # what the task makes of the outputs for a sample, such as a class, a word or a pitch in Hz
    answer: Callable[[Sequence[Tensor]], Any]
    task: str  # in words, for the table, with {} for how many samples score
    wanted: Sequence[Any] | None = None  # the answers; None for the eager module's
    calibration: int = 8  # how many of the first samples quantizers observe; half of the others score

    def score(self, run: Callable[[tuple[Tensor, ...]], Sequence[Tensor]], *, tuning: bool = False) -> float:
        """The share of right answers; of pitches those within 50 cents, of vectors the mean cosine.

        For tuning, it is that of other samples.
        """
        rights = []
        for number in self.scored(tuning=tuning):
            sample = self.samples[number]
            wanted = self.wanted[number] if self.wanted else self.answer(self.eager(sample))
            rights.append(right(self.answer(run(sample)), wanted))
        return sum(rights) / len(rights)

    def scored(self, *, tuning: bool = False) -> list[int]:
        """Which samples score: by twos, since some are of two kinds in turn."""
        rest = range(self.calibration, len(self.samples))
        return [number for number in rest if (number - self.calibration) // 2 % 2 == tuning]

    def eager(self, sample: tuple[Tensor, ...]) -> list[Tensor]:
        with torch.no_grad():
            return list(torch.utils._pytree.tree_leaves(self.module(*sample)))  # noqa: SLF001 - torch has no other


def right(found: Any, wanted: Any) -> float:
    """How right an answer is, at most 1."""
    if isinstance(wanted, Tensor):
        return float(nn.functional.cosine_similarity(found.flatten(), wanted.flatten(), dim=0))
    if isinstance(wanted, float):
        return float(found > 0 and abs(1200 * np.log2(found / wanted)) < 50)
    return float(found == wanted)


def folder_of(package: str) -> Path:
    """Where a package is, which is not imported: it may import, or download, what is not needed here."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0])
