"""Changes of transformers 5.24 for torch.export."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

import torch
from transformers import masking_utils


def masks_of_indices() -> AbstractContextManager[object]:
    """Computes masks from broadcast indices while the context is open, without ``torch.vmap``.

    transformers takes ``vmap`` where a model has a mask function of its own, as Gemma 3 has for the tokens of images
    (`create_causal_mask` with ``or_mask_function``). An exported program then holds batched tensors, which cannot be
    stored. Delete once `_vmap_expansion_sdpa` is not used while exporting.
    """

    def expanded(mask: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *ranges: mask(*masking_utils._non_vmap_expansion_sdpa(*ranges))  # noqa: SLF001 - has no public name

    return patch.object(masking_utils, "_vmap_expansion_sdpa", expanded)
