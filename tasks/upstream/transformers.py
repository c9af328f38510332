"""Changes of transformers 5.24 for torch.export."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from transformers import core_model_loading, masking_utils

from .patches import mends


@mends(
    "models with mask functions of their own, as Gemma 3, cannot be stored",
    "transformers.masking_utils._vmap_expansion_sdpa",
    "transformers.masking_utils._non_vmap_expansion_sdpa",
)
def masks_of_indices() -> AbstractContextManager[object]:
    """Computes masks from broadcast indices while the context is open, without ``torch.vmap``.

    transformers takes ``vmap`` where a model has a mask function of its own, as Gemma 3 has for the tokens of images
    (`create_causal_mask` with ``or_mask_function``). An exported program then holds batched tensors, which cannot be
    stored. Delete once `_vmap_expansion_sdpa` is not used while exporting.
    """

    def expanded(mask: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *ranges: mask(*masking_utils._non_vmap_expansion_sdpa(*ranges))  # noqa: SLF001 - has no public name

    return patch.object(masking_utils, "_vmap_expansion_sdpa", expanded)


@mends(
    "weights that are loaded in another dtype are copied in memory", "transformers.core_model_loading._materialize_copy"
)
def weights_cast_on_use(cast: Callable[[torch.Tensor, torch.dtype], torch.Tensor]) -> AbstractContextManager[object]:
    """Casts weights that are loaded in another dtype by `cast`, which may put it off, while the context is open.

    transformers copies them (`_materialize_copy`, if it has that). Delete once it can put casts off.
    """
    if not hasattr(core_model_loading, "_materialize_copy"):
        return nullcontext()

    def materialized(part: Any, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        loaded = part[...]
        if dtype in (None, loaded.dtype) or torch.device(device or "cpu").type != "cpu":
            return loaded if device is None and dtype is None else loaded.to(device=device, dtype=dtype)
        return cast(loaded, dtype)

    return patch.object(core_model_loading, "_materialize_copy", materialized)
