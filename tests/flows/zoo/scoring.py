"""An evaluator for tests, apart from the models, so that either can change by itself."""

from __future__ import annotations

from pathlib import Path

import torch


def finite(predict, *, scale: float = 1.0, labels: str | None = None) -> float:
    """`scale` where the outputs are finite, or what a file says instead."""
    if labels:
        scale = float(Path(labels).read_text(encoding="utf-8"))
    return scale * float(torch.isfinite(predict(torch.ones(2, 4))).all())


def raising(predict) -> float:
    """Fails."""
    del predict
    raise OSError("the labels are not there")
