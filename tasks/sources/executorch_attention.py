"""ExecuTorch's own operators for attention with a KV cache, for models of transformers.

`llama::update_cache` writes keys and values where they belong, without a copy of the cache, and `llama::custom_sdpa`
reads no more of it than is filled. They are in executorch/extension/llm/custom_ops (executorch 1.5.1), whose library
has to be loaded where such a file runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from executorch.extension.llm.custom_ops import custom_ops as _registered  # noqa: F401 - the operators
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function, sdpa_mask

from ...errors import SourceError
from ..upstream.compat import decomposed_operators  # noqa: F401 - those that quantize
from .huggingface import in_dtype
from .kv_cache import START, KvCache, LayerShape, Shapes, StaticCacheLayer, WindowCacheLayer

NAME = "executorch"  # of the attention in transformers
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")  # arguments that some models pass to their attention


def switch_attention(model: Any) -> None:
    """Lets a model of transformers use the operators; raises SourceError if it cannot."""
    model.set_attn_implementation(NAME)
    if model.config.get_text_config(decoder=True)._attn_implementation != NAME:  # noqa: SLF001 - has no public name
        raise SourceError(f"attention: custom_sdpa: the code of {model.config.model_type!r} has its own; leave it out")


class SequenceCache(KvCache):
    """Keys and values of every layer, each [1, context, heads, head size], as the operators take them."""

    def __init__(self, shapes: Shapes, context: int, sinks: int = 0) -> None:
        if any(shape and shape.keys != shape.values for shape in shapes):
            raise SourceError("attention: custom_sdpa needs keys and values of one shape, and this model's differ")
        super().__init__(shapes, context, sinks)

    def _add_layer(self, number: int, shape: LayerShape) -> None:
        _, heads, _, size = shape.keys
        for what in ("keys", "values"):
            self.register_buffer(f"{what}_{number}", torch.zeros(1, self._tokens(shape), heads, size))

    def _layer(self, number: int, positions: torch.Tensor, start: int) -> StaticCacheLayer:
        kept = self._kept(number)
        if self._windows[number]:
            return _SequenceWindowLayer(positions, self.sinks, kept)
        return _SequenceLayer(positions, start, kept)

    def _kept(self, number: int) -> tuple[_Kept, _Kept]:
        return _Kept(self.get_buffer(f"keys_{number}")), _Kept(self.get_buffer(f"values_{number}"))


class QuantizedCache(SequenceCache):
    """The same in int8, with a scale in float32 and a zero point for each token and head, whatever the model is in."""

    def to(self, *_: Any, **__: Any) -> Self:
        return self

    def _add_layer(self, number: int, shape: LayerShape) -> None:
        (_, heads, _, size), tokens = shape.keys, self._tokens(shape)
        for what in ("keys", "values"):
            self.register_buffer(f"{what}_{number}", torch.zeros(1, tokens, heads, size, dtype=torch.int8))
            self.register_buffer(f"{what}_scales_{number}", torch.zeros(1, tokens, heads, 1))
            self.register_buffer(f"{what}_zeros_{number}", torch.zeros(1, tokens, heads, 1, dtype=torch.int8))

    def _kept(self, number: int) -> tuple[_Kept, _Kept]:
        keys, values = (
            _Kept(*(self.get_buffer(f"{what}{part}_{number}") for part in ("", "_scales", "_zeros")))
            for what in ("keys", "values")
        )
        return keys, values


CACHES: dict[str | None, type[SequenceCache]] = {None: SequenceCache, "int8": QuantizedCache}
"""Classes by the option `cache`."""


@dataclass(frozen=True)
class _Kept:
    """Keys or values [1, tokens, heads, head size]; in int8, scales and zero points [1, tokens, heads, 1]."""

    states: torch.Tensor
    scales: torch.Tensor | None = None
    zeros: torch.Tensor | None = None

    def parts(self, states: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor with the same one for new states."""
        if self.scales is None or self.zeros is None:
            return [(self.states, states)]
        new = _quantized(states)
        return [(self.states, new.states), (self.scales, new.scales), (self.zeros, new.zeros)]


class _SequenceLayer(StaticCacheLayer):
    def __init__(self, positions: torch.Tensor, start: int, kept: tuple[_Kept, _Kept]) -> None:
        super().__init__(kept[0].states.shape[1], positions)
        self._start = start
        self._kept = kept

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Writes the keys and values of the tokens; returns those of all positions, for `_attention` only."""
        for kept, states in zip(self._kept, (key_states, value_states), strict=True):
            for cache, new in kept.parts(states.transpose(1, 2)):
                torch.ops.llama.update_cache(new, cache, self._start)
        return self._kept


class _SequenceWindowLayer(WindowCacheLayer):
    def __init__(self, positions: torch.Tensor, sinks: int, kept: tuple[_Kept, _Kept]) -> None:
        super().__init__(kept[0].states.shape[1], positions, sinks)
        self._kept = kept

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Returns the keys and values of kept and new tokens, for `_attention` only."""
        keys, values = (
            _Kept(*(self.append(cache, new, 1) for cache, new in kept.parts(states.transpose(1, 2))))
            for kept, states in zip(self._kept, (key_states, value_states), strict=True)
        )
        return keys, values


def _quantized(states: torch.Tensor) -> _Kept:
    """Quantizes [1, tokens, heads, head size] to int8, each token and head on its own."""
    operators = torch.ops.quantized_decomposed
    states = in_dtype(states, torch.float32)
    scales, zeros = operators.choose_qparams_per_token_asymmetric.default(states, torch.int8)
    quantized = operators.quantize_per_token.default(states, scales, zeros, -128, 127, torch.int8)
    return _Kept(quantized, scales.to(torch.float32), zeros.to(torch.int8))


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: Any,
    value: Any,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of tokens [1, heads, tokens, head size] on the cache; returns [1, tokens, heads, head size]."""
    if not isinstance(key, _Kept):
        problem = f"{type(module).__name__} changes what it gets from its cache; leave it out"
        raise SourceError(f"attention: custom_sdpa: {problem}")
    if START not in options or any(options.get(name) is not None for name in _UNSUPPORTED):
        raise SourceError(f"attention: custom_sdpa cannot do what {type(module).__name__} asks for; leave it out")
    # Without a mask, a token sees what is before it. A mask is for all positions of the cache.
    mask = None
    if attention_mask is not None:
        mask = torch.where(attention_mask[0, 0], 0.0, torch.finfo(torch.float32).min)
    arguments = (options[START], mask, 0.0, mask is None, scaling)
    tokens = query.transpose(1, 2)
    if key.scales is None:
        return torch.ops.llama.custom_sdpa(tokens, key.states, value.states, *arguments), None
    queries = _quantized(tokens)
    parts = (part for kept in (queries, key, value) for part in (kept.zeros, kept.scales))
    output = torch.ops.llama.custom_quantized_sdpa(queries.states, key.states, value.states, *arguments, *parts)
    return in_dtype(output, query.dtype), None


def _mask(*, mask_function: Callable[..., Any], attention_mask: torch.Tensor | None = None, **sizes: Any) -> Any:
    """No mask where a token sees all that is before it: the operator needs none for that."""
    if mask_function is causal_mask_function and attention_mask is None:
        return None
    options = {**sizes, "allow_is_causal_skip": False}
    return sdpa_mask(mask_function=mask_function, attention_mask=attention_mask, **options)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
