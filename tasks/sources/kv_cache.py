"""Caches of keys and values in buffers, of static size, for the attention of models of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from transformers import cache_utils

from ...errors import SourceError

START = "executorch_start"
"""The keyword by which a model hands its attention the number of tokens in the cache, if that takes one."""


class LayerShape(NamedTuple):
    """Shapes of a layer's keys and values, [1, heads, tokens, head size], and how many tokens each token sees."""

    keys: torch.Size
    values: torch.Size
    window: int | None  # with itself; None: all before it


Shapes = Sequence[LayerShape | None]  # of each layer; None for layers that have no keys and values

_KEPT = {cache_utils.StaticLayer, cache_utils.StaticSlidingWindowLayer, cache_utils.DummyLayer}


def cache_shapes(model: Any, inputs: Mapping[str, torch.Tensor]) -> Shapes:
    """Shapes that a model (its decoder's own attention) caches; SourceError unless they are keys and values."""
    config = model.config.get_text_config(decoder=True)
    kinds, _ = cache_utils.get_layer_types_and_kwargs(config)
    if others := sorted({kind for kind in kinds if cache_utils.STATIC_LAYER_TYPE_MAPPING.get(kind) not in _KEPT}):
        raise SourceError(
            f"layers of {config.model_type!r} keep other state than keys and values ({', '.join(others)}), which "
            "ExecuTorch's text runner cannot go on from; with `task: feature-extraction` it is exported without a cache"
        )
    with torch.no_grad():
        filled = getattr(model(**inputs, use_cache=True), "cache", None)
    filled = getattr(filled, "self_attention_cache", filled)
    layers = filled.layers if isinstance(filled, cache_utils.DynamicCache) else None
    if layers is None:
        raise SourceError(
            f"{config.model_type!r} keeps no keys and values, and ExecuTorch's text runner cannot go on from other "
            "state; with `task: feature-extraction` it is exported without a cache"
        )
    return [
        None
        if isinstance(layer, cache_utils.DummyLayer) or not layer.is_initialized
        else LayerShape(layer.keys.shape, layer.values.shape, getattr(layer, "sliding_window", None))
        for layer in layers
    ]


class KvCache(torch.nn.Module):
    """Keys and values of every layer, each [1, heads, tokens, head size].

    Layers with a sliding window keep the tokens before the next one that it sees, in their order; others keep those of
    all positions of the context. With attention sinks, all layers keep these, the first tokens, and a window: a token
    sees `context` tokens, and no number of tokens is too large.
    """

    def __init__(self, shapes: Shapes, context: int, sinks: int = 0) -> None:
        super().__init__()
        self.context, self.sinks = context, sinks
        self._windows = [shape and self._window(shape) for shape in shapes]
        self._stored = [shape is not None for shape in shapes]
        for number, shape in enumerate(shapes):
            if shape is not None:
                self._add_layer(number, shape)

    def clear(self) -> None:
        for buffer in self.buffers():
            buffer.zero_()

    def at(self, positions: torch.Tensor, start: int) -> cache_utils.Cache:
        """The cache for tokens at positions [tokens], from `start` on: it has what is before them."""
        return cache_utils.Cache(
            [
                self._layer(number, positions, start) if stored else cache_utils.DummyLayer()
                for number, stored in enumerate(self._stored)
            ]
        )

    @property
    def longest_window(self) -> int:
        """The longest window in tokens; 0 if no layer has one."""
        return max(filter(None, self._windows), default=0)

    def rotary_positions(self, positions: torch.Tensor) -> torch.Tensor:
        """Positions [tokens] that the model gets.

        With sinks, those after them repeat every two windows, so that they stay within what the model was trained for,
        as in examples/models/llama/source_transformation/attention_sink.py (executorch 1.5.1).
        """
        if not self.sinks:
            return positions
        repeated = self.sinks + (positions - self.sinks) % (2 * self.longest_window)
        return torch.where(positions < self.sinks, positions, repeated)

    def mask(self, positions: torch.Tensor) -> torch.Tensor:
        """Which of the kept and the new tokens those at positions [tokens] see, [1, 1, tokens, kept + tokens]."""
        kept = kept_positions(positions[:1], self.context - 1, positions.shape[0], self.sinks)
        seen = (kept < self.sinks) | (kept > positions[:, None] - self.longest_window)
        return (seen & (kept <= positions[:, None]))[None, None]

    def _window(self, shape: LayerShape) -> int | None:
        if self.sinks:
            return self.context - self.sinks
        return shape.window if shape.window and shape.window < self.context else None

    def _tokens(self, shape: LayerShape) -> int:
        """How many a layer keeps."""
        window = self._window(shape)
        return self.sinks + max(window - 1, 1) if window else self.context

    def _add_layer(self, number: int, shape: LayerShape) -> None:
        for what, (_, heads, _, size) in (("keys", shape.keys), ("values", shape.values)):
            self.register_buffer(f"{what}_{number}", torch.zeros(1, heads, self._tokens(shape), size))

    def _layer(self, number: int, positions: torch.Tensor, start: int) -> StaticCacheLayer:
        del start
        kept = self.get_buffer(f"keys_{number}"), self.get_buffer(f"values_{number}")
        return _WindowLayer(positions, self.sinks, *kept) if self._windows[number] else _Layer(positions, *kept)


class StaticCacheLayer(cache_utils.StaticLayer):
    """One layer at certain positions [tokens], which keeps a number of tokens."""

    def __init__(self, tokens: int, positions: torch.Tensor) -> None:
        super().__init__(tokens)
        self.cumulative_length = positions[:1]
        self.is_initialized = True


class _Layer(StaticCacheLayer):
    """All positions of the context."""

    def __init__(self, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__(keys.shape[2], positions)
        self.keys, self.values = keys, values
        self._positions = positions

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the keys and values of the tokens; returns those of all positions. Masks hide future ones."""
        keys = self.keys.index_copy_(2, self._positions, key_states)
        return keys, self.values.index_copy_(2, self._positions, value_states)


_HIDDEN = 1 << 30  # the position of empty entries: causal masks hide it from all tokens


def kept_positions(start: torch.Tensor, kept: int, new: int, sinks: int) -> torch.Tensor:
    """The positions of kept and new tokens, [kept + new]; `start` [1] is that of the first new one."""
    indices = torch.arange(kept + new)
    positions = start - kept + indices
    positions = torch.where((indices < kept) & (positions < sinks), _HIDDEN, positions)
    if sinks:
        positions = torch.where(indices < sinks, torch.where(indices < start, indices, _HIDDEN), positions)
    return positions


class WindowCacheLayer(StaticCacheLayer):
    """The first tokens, or none, and the last ones before certain positions."""

    is_sliding = True

    def __init__(self, tokens: int, positions: torch.Tensor, sinks: int) -> None:
        super().__init__(tokens, positions)
        self._sinks = sinks

    def get_mask_sizes(self, query_length: int) -> tuple[int, Any]:
        """The number of kept and new tokens, and by how much their positions differ from their indices."""
        positions = kept_positions(self.cumulative_length, self.max_cache_len, query_length, self._sinks)
        return positions.shape[0], positions - torch.arange(positions.shape[0])

    def append(self, kept: torch.Tensor, new: torch.Tensor, axis: int) -> torch.Tensor:
        """Returns the kept and the new tokens on an axis; keeps the first and the last of them."""
        joined, sinks = torch.cat([kept, new.contiguous()], axis), self._sinks
        last = joined.narrow(axis, sinks + new.shape[axis], kept.shape[axis] - sinks)
        if sinks:
            first, start = torch.arange(sinks), self.cumulative_length
            there = (kept.shape[axis] + first - start).clamp(max=joined.shape[axis] - 1)
            last = torch.cat([joined.index_select(axis, torch.where(first < start, first, there)), last], axis)
        kept.copy_(last)
        return joined


class _WindowLayer(WindowCacheLayer):
    def __init__(self, positions: torch.Tensor, sinks: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__(keys.shape[2], positions, sinks)
        self.keys, self.values = keys, values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the keys and values of kept and new tokens."""
        return self.append(self.keys, key_states, 2), self.append(self.values, value_states, 2)
