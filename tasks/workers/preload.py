"""Imported by the warm server before it takes calls: what every stage would otherwise pay for again."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
