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

from ...errors import SourceError

START = "executorch_start"
"""The keyword by which a model hands its attention the number of tokens in the cache, if that takes one."""

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
        raise SourceError(
            f"layers of {config.model_type!r} keep other state than keys and values ({', '.join(others)}), which "
            "ExecuTorch's text runner cannot go on from; with `task: feature-extraction` it is exported without a cache"
        )
    with torch.no_grad():
        filled = getattr(model(input_ids=tokens, use_cache=True), "cache", None)
    layers = filled.layers if isinstance(filled, DynamicCache) else None
    if layers is None:
        raise SourceError(
            f"{config.model_type!r} keeps no keys and values, and ExecuTorch's text runner cannot go on from other "
            "state; with `task: feature-extraction` it is exported without a cache"
        )
    return [
        None if isinstance(layer, DummyLayer) or not layer.is_initialized else (layer.keys.shape, layer.values.shape)
        for layer in layers
    ]


class KvCache(torch.nn.Module):
    """Keys and values of every layer for all positions of the context, each [1, heads, context, head size]."""

    def __init__(self, shapes: Shapes, context: int) -> None:
        super().__init__()
        self.context = context
        self._stored = [shape is not None for shape in shapes]
        for number, shape in enumerate(shapes):
            if shape is not None:
                self._add_layer(number, *shape)

    def clear(self) -> None:
        for buffer in self.buffers():
            buffer.zero_()

    def at(self, positions: torch.Tensor, start: int) -> Cache:
        """The cache for tokens at positions [tokens], from `start` on: it has what is before them."""
        return Cache(
            [
                self._layer(number, positions, start) if stored else DummyLayer()
                for number, stored in enumerate(self._stored)
            ]
        )

    def _add_layer(self, number: int, keys: torch.Size, values: torch.Size) -> None:
        for what, (_, heads, _, size) in (("keys", keys), ("values", values)):
            self.register_buffer(f"{what}_{number}", torch.zeros(1, heads, self.context, size))

    def _layer(self, number: int, positions: torch.Tensor, start: int) -> StaticCacheLayer:
        del start
        return _Layer(self.context, positions, self.get_buffer(f"keys_{number}"), self.get_buffer(f"values_{number}"))


class StaticCacheLayer(StaticLayer):
    """One layer at certain positions. Sliding windows are masks: what they do not see is kept."""

    def __init__(self, context: int, positions: torch.Tensor) -> None:
        super().__init__(context)
        self.cumulative_length = positions[:1]
        self.is_initialized = True


class _Layer(StaticCacheLayer):
    def __init__(self, context: int, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__(context, positions)
        self.keys, self.values = keys, values
        self._positions = positions

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the keys and values of the tokens; returns those of all positions. Masks hide future ones."""
        return (
            self.keys.index_copy_(2, self._positions, key_states),
            self.values.index_copy_(2, self._positions, value_states),
        )
