"""Evaluators for tests, in a module of their own so that models and evaluators change independently."""

from __future__ import annotations

from pathlib import Path

import torch


def finite(predict, *, scale: float = 1.0, labels: str | None = None) -> float:
    """`scale`, or the number in the file `labels`, if the outputs are finite."""
    if labels:
        scale = float(Path(labels).read_text(encoding="utf-8"))
    return scale * float(torch.isfinite(predict(torch.ones(2, 4))).all())


def raising(predict) -> float:
    del predict
    raise OSError("the labels are not there")
