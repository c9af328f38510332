"""Language models with a KV cache of static size, in buffers that files keep, and their tokenizers' files.

ExecuTorch's text runner loads and calls them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.export import Dim
from transformers import PretrainedConfig, cache_utils
from transformers.utils import cached_file

from ...configs.model import MethodCall, MethodDefinition, ModelDefinition
from ...errors import SourceError
from .huggingface import (
    describe,
    example_tokens,
    load_model,
    load_tokenizer,
    place_of,
    positions_of,
    random_tokens,
    tokenizer_metadata,
)

JSON, SENTENCE_PIECE = "tokenizer.json", "tokenizer.model"
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""The runner finds the ids of special tokens in the first two; apps make prompts with the third."""


def tokenizer_files(place: Mapping[str, Any]) -> dict[str, bytes]:
    """Files by name; none if the model has no tokenizer.

    The runner (`load_tokenizer` in extension/llm/runner/llm_runner_helper.cpp) takes ``tokenizer.json`` if its model is
    BPE, and SentencePiece's ``tokenizer.model`` with any. Where there is neither, the first one is made from what
    transformers reads.
    """
    found = files_of(place, (JSON, SENTENCE_PIECE, *_SETTINGS))
    if JSON not in found and SENTENCE_PIECE not in found:
        made = _convert(place)
        return {**found, **made} if JSON in made else {}
    if JSON in found and _is_bpe(found[JSON]):
        found.pop(SENTENCE_PIECE, None)
    return found


def files_of(place: Mapping[str, Any], names: Iterable[str]) -> dict[str, bytes]:
    """The content of those files that the model's repository or folder has."""
    return {name: path.read_bytes() for name in names if (path := _find(place, name))}


def _find(place: Mapping[str, Any], name: str) -> Path | None:
    # transformers' own processors pass these arguments to learn whether there is a file (transformers 5.23).
    found = cached_file(
        place["pretrained_model_name_or_path"],
        name,
        revision=place["revision"],
        local_files_only=True,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(found) if found else None


def _is_bpe(content: bytes) -> bool:
    try:
        kind = json.loads(content)["model"].get("type", "BPE")
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return bool(kind == "BPE")


def _convert(place: Mapping[str, Any]) -> dict[str, bytes]:
    tokenizer = load_tokenizer(place)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return {}
    if "gguf_file" not in place:
        return {JSON: backend.to_str(pretty=True).encode()}
    with TemporaryDirectory() as folder:  # a GGUF file has special tokens and the template, too
        tokenizer.save_pretrained(folder)
        return files_of({**place, "pretrained_model_name_or_path": folder}, (JSON, *_SETTINGS))


class CachedModel(torch.nn.Module):
    """A language model that goes on from the tokens in its cache."""

    def __init__(self, model: Any, cache: KvCache, *, passes_start: bool = False) -> None:
        super().__init__()
        self.model = model
        self.cache = cache
        taken = inspect.signature(model.forward).parameters
        self._options = {"use_cache": True, **({"logits_to_keep": 1} if "logits_to_keep" in taken else {})}
        self._takes_positions = "position_ids" in taken
        self._passes_start = passes_start

    def forward(self, tokens: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Computes the logits after the last token.

        Args:
            tokens: [1, tokens], int64.
            start: [1], int64: number of tokens before them.

        Returns:
            [1, vocabulary].
        """
        positions = start + torch.arange(tokens.shape[1])
        given: dict[str, Any] = {"position_ids": positions[None]} if self._takes_positions else {}
        first = 0
        if self._passes_start:
            first = given[START] = self._first(start, tokens.shape[1])
        made = self.model(input_ids=tokens, cache=self.cache.at(positions, first), **given, **self._options)
        return made.logits[:, -1].float()

    def _first(self, start: torch.Tensor, tokens: int) -> int:
        """The start as a number, with what operators have to know of it."""
        first: Any = start[0].item()
        for known in (first >= 0, first < self.cache.context, first + tokens <= self.cache.context):
            torch._check(known)  # noqa: SLF001 - torch's documentation has it
        return first  # type: ignore[no-any-return]  # a number, symbolic while it is traced


def model(  # noqa: PLR0913 - fields of a source
    name: str,
    revision: str | None = None,
    task: str | None = None,
    config: Mapping[str, Any] | None = None,
    sequence: int = 512,
    attention: str | None = None,
    cache: str | None = None,
    *,
    dtype: str = "float32",
    weights: Mapping[str, Any] | None = None,
) -> ModelDefinition:
    """A language model whose one method, `forward`, takes a prompt or a token, and whose file says how to run it.

    Args:
        name: of a repository in the hub's cache, a folder, or, with a configuration, a ``model_type``.
        revision: the repository's commit.
        task: text-generation.
        config: fields of the configuration that replace its own. The weights are random then.
        sequence: room in the cache: tokens of prompt and answer together, at most.
        attention: custom_sdpa: by ExecuTorch's operators; None: by torch's.
        cache: int8: quantized, for attention by ExecuTorch's operators; None: in floating point.
        dtype: of weights, computation and cache: float32, bfloat16, float16.
        weights: `gguf`, the name of the file to read, and `adapter`, the name and revision of one to merge.
    """
    place = place_of(name, revision, weights)
    loaded, configuration = load_model(place, task or "text-generation", config, weights, dtype=dtype)
    text = configuration.get_text_config(decoder=True)
    context = min(sequence, positions_of(configuration))
    if context < _LEAST:
        raise SourceError(f"a context of {context} tokens is too short: let `sequence` be {_LEAST} or more")
    prompt = example_tokens(place, text.vocab_size, min(8, context - 2))
    if prompt.shape[1] < 2:
        prompt = random_tokens(text.vocab_size, 1, min(8, context - 2))
    cached = _with_cache(loaded, prompt, context, attention, cache)
    length = prompt.shape[1]
    first = prompt, torch.tensor([0])
    later = [(prompt[:, position : position + 1], torch.tensor([length + position])) for position in (0, 1)]
    tokens = Dim("tokens", min=1, max=context)
    return ModelDefinition(
        {"forward": MethodDefinition(cached, [first, *later], ({1: tokens}, None))},
        constant_methods=constants(loaded, text, context, own_attention=attention is not None),
        assets=tokenizer_files(place),
        sequences=[[MethodCall("forward", call) for call in (first, *later)]],
        metadata={
            **describe(place, configuration),
            "tokenizer": tokenizer_metadata(place, configuration),
            "context_length": context,
        },
    )


_LEAST = 4  # tokens of a context that the examples fit into
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05, "int8": 0.2}
"""By which the largest logit may differ, as a part of it, by what the cache holds: the order of additions differs."""


def _with_cache(
    loaded: Any, prompt: torch.Tensor, context: int, attention: str | None, cache: str | None
) -> CachedModel:
    """The model with a cache.

    Raises ValueError if it has none that the runner can use, or does not compute with it what it computes without any.
    """
    shapes = cache_shapes(loaded, {"input_ids": prompt})
    with torch.no_grad():
        wanted = loaded(input_ids=prompt, use_cache=False).logits[0, -2:].float()
    if attention is None:
        cached = CachedModel(loaded, KvCache(shapes, context).to(loaded.dtype))
    else:
        from . import executorch_attention as own  # noqa: PLC0415 - takes seconds

        kind = own.QuantizedCache if cache == "int8" else own.SequenceCache
        own.switch_attention(loaded)
        cached = CachedModel(loaded, kind(shapes, context).to(loaded.dtype), passes_start=True)
    with torch.no_grad():
        before = cached(prompt[:, :-1], torch.tensor([0]))
        after = cached(prompt[:, -1:], torch.tensor([prompt.shape[1] - 1]))
    cached.cache.clear()
    check_logits(torch.cat([before, after]), wanted, loaded, cache)
    return cached


def check_logits(found: torch.Tensor, wanted: torch.Tensor, loaded: Any, cache: str | None = None) -> None:
    """Raises SourceError if a model with a cache computes other logits than without."""
    if (found - wanted).abs().max() > _TOLERANCES[cache or loaded.dtype] * wanted.abs().max():
        name = loaded.config.get_text_config(decoder=True).model_type
        raise SourceError(
            f"{name!r} computes other logits with a cache of static size than without, because its code does not take "
            "positions and masks from transformers' cache: ExecuTorch's runners cannot use it; with "
            "`task: feature-extraction` it is exported without a cache"
        )


def constants(loaded: Any, text: PretrainedConfig, context: int, *, own_attention: bool) -> dict[str, Any]:
    """What ExecuTorch's text runner asks a file for (extension/llm/runner/constants.h)."""
    known: dict[str, Any] = {
        "get_max_seq_len": context,
        "get_max_context_len": context,
        "get_vocab_size": text.vocab_size,
        "get_n_layers": text.num_hidden_layers,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": own_attention,
        "enable_dynamic_shape": True,
    }
    generation = getattr(loaded, "generation_config", None)
    special = {}
    for what in ("eos", "bos"):
        found = (getattr(each, f"{what}_token_id", None) for each in (generation, text))
        special[what] = next((token for token in found if token is not None), None)
    if (eos := special["eos"]) is not None:
        known["get_eos_ids"] = list(eos) if isinstance(eos, (list, tuple)) else [eos]
    if special["bos"] is not None:
        known["get_bos_id"] = special["bos"]
    return known


START = "executorch_start"
"""The keyword by which a model hands its attention the number of tokens in the cache, if that takes one."""

Shapes = Sequence[tuple[torch.Size, torch.Size] | None]
"""Of keys and values of each layer, [1, heads, tokens, head size]; None for layers that have none."""

_KEPT = {cache_utils.StaticLayer, cache_utils.StaticSlidingWindowLayer, cache_utils.DummyLayer}


def cache_shapes(model: Any, inputs: Mapping[str, torch.Tensor]) -> Shapes:
    """The shapes of what a model puts into its cache for inputs; of its decoder's own attention, if it has an encoder.

    Raises ValueError if it keeps other state than keys and values, or none.
    """
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
        else (layer.keys.shape, layer.values.shape)
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

    def at(self, positions: torch.Tensor, start: int) -> cache_utils.Cache:
        """The cache for tokens at positions [tokens], from `start` on: it has what is before them."""
        return cache_utils.Cache(
            [
                self._layer(number, positions, start) if stored else cache_utils.DummyLayer()
                for number, stored in enumerate(self._stored)
            ]
        )

    def _add_layer(self, number: int, keys: torch.Size, values: torch.Size) -> None:
        for what, (_, heads, _, size) in (("keys", keys), ("values", values)):
            self.register_buffer(f"{what}_{number}", torch.zeros(1, heads, self.context, size))

    def _layer(self, number: int, positions: torch.Tensor, start: int) -> StaticCacheLayer:
        del start
        return _Layer(self.context, positions, self.get_buffer(f"keys_{number}"), self.get_buffer(f"values_{number}"))


class StaticCacheLayer(cache_utils.StaticLayer):
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
