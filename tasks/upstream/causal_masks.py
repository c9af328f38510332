"""Masks of transformers: torch 2.13 compares their values while a model is traced.

`nn.TransformerEncoder` and `nn.TransformerDecoder` find out whether a mask is causal (`_detect_is_causal_mask` in
torch/nn/modules/transformer.py), for kernels that need no mask then. Tracing has no values: "Could not guard on
data-dependent expression". What is computed is the same if a mask is not known to be causal, and the program takes
others, too. What a caller says with ``is_causal`` still holds. Delete once torch does not compare while exporting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch
from torch.nn.modules import transformer


def _is_said_to_be_causal(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    del mask, size
    return is_causal is True


@contextlib.contextmanager
def uncompared_masks() -> Iterator[None]:
    """Has torch take masks as they come while the context is open."""
    with mock.patch.object(transformer, "_detect_is_causal_mask", _is_said_to_be_causal):
        yield
