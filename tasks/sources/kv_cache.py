"""Caches in buffers, of static size: keys and values of attention, and states of convolutions and recurrent layers."""

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


class State(NamedTuple):
    """What a layer keeps of the tokens so far; None for what it has not."""

    conv: torch.Tensor | None  # [1, channels, tokens]: the last inputs of a convolution
    recurrent: torch.Tensor | None


States = Sequence[Sequence[State]]  # of each layer

_KEPT = {cache_utils.StaticLayer, cache_utils.StaticSlidingWindowLayer, cache_utils.DummyLayer}
_STATES = (cache_utils.LinearAttentionCacheLayerMixin,)


def cache_shapes(model: Any, inputs: Mapping[str, torch.Tensor]) -> Shapes:
    """Shapes that a model (its decoder's own attention) caches; SourceError unless they are keys and values."""
    filled = _filled_layers(model, inputs)
    if others := sorted({type(layer).__name__ for layer in filled if isinstance(layer, _STATES)}):
        raise SourceError(
            f"layers of {_name(model)!r} keep other state than keys and values ({', '.join(others)}), which is known "
            f"of models that generate text from text only; {_WITHOUT}"
        )
    return _attention_shapes(filled)


def cached_parts(model: Any, inputs: Mapping[str, torch.Tensor]) -> tuple[Shapes, States]:
    """Shapes of keys and values that a model caches, and states; SourceError if it keeps anything else."""
    filled = _filled_layers(model, inputs)
    states = [
        [State(layer.conv_states[at], layer.recurrent_states[at]) for at in range(layer.number_of_states)]
        if isinstance(layer, _STATES)
        else []
        for layer in filled
    ]
    return _attention_shapes(filled), states


def _name(model: Any) -> str:
    return str(model.config.get_text_config(decoder=True).model_type)


_WITHOUT = "with `task: feature-extraction` it is exported without a cache"


def _filled_layers(model: Any, inputs: Mapping[str, torch.Tensor]) -> Sequence[Any]:
    """The layers of a model's cache after some inputs; SourceError if it keeps state that is not known here."""
    config = model.config.get_text_config(decoder=True)
    kinds, _ = cache_utils.get_layer_types_and_kwargs(config)
    mapping = cache_utils.STATIC_LAYER_TYPE_MAPPING
    kept = {kind for kind, layer in mapping.items() if layer in _KEPT or issubclass(layer, _STATES)}
    if others := sorted({*kinds} - kept):
        raise SourceError(
            f"layers of {config.model_type!r} keep other state than keys and values ({', '.join(others)}), which "
            f"ExecuTorch's text runner cannot go on from; {_WITHOUT}"
        )
    with torch.no_grad():
        filled = getattr(model(**inputs, use_cache=True), "cache", None)
    filled = getattr(filled, "self_attention_cache", filled)
    if not isinstance(filled, cache_utils.DynamicCache):
        raise SourceError(
            f"{config.model_type!r} keeps no keys and values, and ExecuTorch's text runner cannot go on from other "
            f"state; {_WITHOUT}"
        )
    layers: Sequence[Any] = filled.layers
    return layers


def _attention_shapes(layers: Sequence[Any]) -> Shapes:
    return [
        None
        if isinstance(layer, cache_utils.DummyLayer) or not getattr(layer, "is_initialized", False)
        else LayerShape(layer.keys.shape, layer.values.shape, getattr(layer, "sliding_window", None))
        for layer in layers
    ]


class KvCache(torch.nn.Module):
    """Keys and values of every layer, each [1, heads, tokens, head size], and states.

    Layers with a sliding window keep the tokens before the next one that it sees, in their order; others keep those of
    all positions of the context. With attention sinks, all layers keep these, the first tokens, and a window: a token
    sees `context` tokens, and no number of tokens is too large.
    """

    def __init__(self, shapes: Shapes, context: int, sinks: int = 0) -> None:
        super().__init__()
        self.context, self.sinks = context, sinks
        self._windows = [shape and self._window(shape) for shape in shapes]
        self._stored = [shape is not None for shape in shapes]
        self._states: dict[int, int] = {}  # numbers of states, by layer
        for number, shape in enumerate(shapes):
            if shape is not None:
                self._add_layer(number, shape)

    def add_states(self, states: States) -> None:
        """Adds buffers for states, in their own dtypes."""
        for number, of_layer in enumerate(states):
            if of_layer:
                self._states[number] = len(of_layer)
            for at, state in enumerate(of_layer):
                for part, value in state._asdict().items():
                    self.register_buffer(f"{part}_{number}_{at}", None if value is None else torch.zeros_like(value))

    @property
    def recurrent(self) -> bool:
        """Whether a layer keeps more than keys, values and inputs of convolutions."""
        return any(name.startswith("recurrent_") for name, _ in self.named_buffers())

    def clear(self) -> None:
        for buffer in self.buffers():
            buffer.zero_()

    def at(self, positions: torch.Tensor, start: int) -> cache_utils.Cache:
        """The cache for tokens at positions [tokens], from `start` on: it has what is before them."""
        return cache_utils.Cache([self._at(number, positions, start) for number in range(len(self._stored))])

    def _at(self, number: int, positions: torch.Tensor, start: int) -> Any:
        layer = self._layer(number, positions, start) if self._stored[number] else None
        if number not in self._states:
            return layer or cache_utils.DummyLayer()
        states = [
            State(self._buffers[f"conv_{number}_{at}"], self._buffers[f"recurrent_{number}_{at}"])
            for at in range(self._states[number])
        ]
        return StateLayer(states, positions) if layer is None else AttentionAndStateLayer(states, positions, layer)

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


class StateLayer(cache_utils.LinearAttentionCacheLayerMixin):
    """States of one layer before certain positions [tokens]; there are none before the first one.

    Models write to the recurrent ones, or pass new ones on. They get none of a convolution, so that they take the whole
    of what `update_conv_state` returns, for one token as for several.
    """

    def __init__(self, states: Sequence[State], positions: torch.Tensor) -> None:
        cache_utils.LinearAttentionCacheLayerMixin.__init__(self, number_of_states=len(states))
        self._states = states
        self._later = positions[:1] > 0
        for at, state in enumerate(states):
            self.has_previous_state[at] = True
            if state.recurrent is not None:
                self.recurrent_states[at] = state.recurrent.copy_(self._before(state.recurrent))

    def _before(self, state: torch.Tensor) -> torch.Tensor:
        return torch.where(self._later, state, torch.zeros_like(state))

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Nothing: buffers are there from the start."""

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, **_: Any) -> torch.Tensor:
        """Returns the kept and the new inputs, and keeps the last ones."""
        kept = self._states[state_idx].conv
        assert kept is not None  # noqa: S101 - the model had one before
        joined = torch.cat([self._before(kept), conv_states], dim=-1)
        kept.copy_(joined[..., -kept.shape[-1] :])
        return joined

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **_: Any) -> torch.Tensor:
        kept = self._states[state_idx].recurrent
        assert kept is not None  # noqa: S101 - as above
        return kept.copy_(recurrent_states)


class AttentionAndStateLayer(StateLayer, StaticCacheLayer):
    """A layer that has both."""

    def __init__(self, states: Sequence[State], positions: torch.Tensor, layer: StaticCacheLayer) -> None:
        StaticCacheLayer.__init__(self, layer.max_cache_len, positions)
        StateLayer.__init__(self, states, positions)
        self._layer = layer
        self.is_sliding = layer.is_sliding

    def update(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._layer.update(*args, **kwargs)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, Any]:
        length, offset = self._layer.get_mask_sizes(query_length)
        return length, offset
