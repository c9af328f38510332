"""A KV cache of static size, as transformers writes and reads it, in buffers that ExecuTorch's files keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import (
    STATIC_LAYER_TYPE_MAPPING,
    Cache,
    DummyLayer,
    DynamicCache,
    StaticLayer,
    StaticSlidingWindowLayer,
    get_layer_types_and_kwargs,
)

Shapes = Sequence[tuple[torch.Size, torch.Size] | None]
"""Of keys and values of each layer, [1, heads, tokens, head size]; None for layers that have none."""

_KEPT = {StaticLayer, StaticSlidingWindowLayer, DummyLayer}


def cache_shapes(model: Any, tokens: torch.Tensor) -> Shapes:
    """The shapes of what a model puts into its cache for tokens [1, tokens].

    Raises:
        ValueError: it keeps other state than keys and values, or none.
    """
    config = model.config.get_text_config(decoder=True)
    kinds, _ = get_layer_types_and_kwargs(config)
    if others := sorted({kind for kind in kinds if STATIC_LAYER_TYPE_MAPPING.get(kind) not in _KEPT}):
        raise ValueError(
            f"layers of {config.model_type!r} keep other state than keys and values ({', '.join(others)}), which "
            "ExecuTorch's text runner cannot go on from; with `task: feature-extraction` it is exported without a cache"
        )
    with torch.no_grad():
        filled = getattr(model(input_ids=tokens, use_cache=True), "past_key_values", None)
    layers = filled.layers if isinstance(filled, DynamicCache) else None
    if layers is None:
        raise ValueError(
            f"{config.model_type!r} keeps no keys and values, and ExecuTorch's text runner cannot go on from other "
            "state; with `task: feature-extraction` it is exported without a cache"
        )
    return [
        None if isinstance(layer, DummyLayer) or not layer.is_initialized else (layer.keys.shape, layer.values.shape)
        for layer in layers
    ]


class KvCache(torch.nn.Module):
    """Keys and values of every layer for all positions of the context."""

    def __init__(self, shapes: Shapes, context: int) -> None:
        super().__init__()
        self.context = context
        self.stored = [shape is not None for shape in shapes]
        for number, shape in enumerate(shapes):
            for what, (_, heads, _, size) in zip(("keys", "values"), shape or (), strict=False):
                self.register_buffer(f"{what}_{number}", torch.zeros(1, heads, context, size))

    def clear(self) -> None:
        for buffer in self.buffers():
            buffer.zero_()

    def at(self, positions: torch.Tensor) -> Cache:
        """The cache for tokens at positions [tokens] that follow each other: it has what is before them."""
        return Cache([self._layer(number, positions) for number in range(len(self.stored))])

    def _layer(self, number: int, positions: torch.Tensor) -> StaticLayer | DummyLayer:
        if not self.stored[number]:
            return DummyLayer()
        return _LayerAt(self.get_buffer(f"keys_{number}"), self.get_buffer(f"values_{number}"), positions)


class _LayerAt(StaticLayer):
    """One layer. Sliding windows are masks: what they do not see is kept."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor) -> None:
        super().__init__(keys.shape[2])
        self.keys, self.values = keys, values
        self.cumulative_length = positions[:1]
        self.is_initialized = True
        self._positions = positions

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the keys and values of the tokens; returns those of all positions. Masks hide future ones."""
        return (
            self.keys.index_copy_(2, self._positions, key_states),
            self.values.index_copy_(2, self._positions, value_states),
        )
