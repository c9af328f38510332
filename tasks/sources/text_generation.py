"""Language models with a KV cache, as ExecuTorch's text runner loads and calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import Dim
from transformers import PretrainedConfig

from ...configs.definition import MethodCall, MethodDefinition, ModelDefinition
from .huggingface import describe, example_tokens, load_model, positions_of, tokenizer_metadata

_LAYERS = {"full_attention", "sliding_attention"}


class KvCache(torch.nn.Module):
    """Keys and values of every layer, each [1, heads, context, head size]."""

    def __init__(self, config: PretrainedConfig, context: int) -> None:
        super().__init__()
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        for layer in range(config.num_hidden_layers):
            for what in ("keys", "values"):
                self.register_buffer(f"{what}_{layer}", torch.zeros(1, heads, context, head_size))


class _CacheAt:
    """The cache interface of transformers, for the tokens at given positions [tokens]."""

    is_compileable = True

    def __init__(self, cache: KvCache, positions: torch.Tensor) -> None:
        self._cache = cache
        self._positions = positions

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the keys and values of the tokens; returns those of all positions. Masks hide future ones."""
        kept_keys, kept_values = (self._cache.get_buffer(f"{what}_{layer_idx}") for what in ("keys", "values"))
        return kept_keys.index_copy_(2, self._positions, keys), kept_values.index_copy_(2, self._positions, values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Unused: positions and masks are passed explicitly."""
        del layer_idx
        return 0


class CachedModel(torch.nn.Module):
    """A language model that goes on from the tokens in its cache."""

    def __init__(self, model: Any, context: int) -> None:
        super().__init__()
        self.model = model
        self.cache = KvCache(model.config.get_text_config(decoder=True), context)
        self.context = context

    def forward(self, tokens: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Computes the logits after the last token.

        Args:
            tokens: [1, tokens], int64.
            start: [1], int64: number of tokens before them.

        Returns:
            [1, vocabulary].
        """
        positions = start + torch.arange(tokens.shape[1])
        made = self.model(
            input_ids=tokens,
            attention_mask=self._masks(positions),
            position_ids=positions[None],
            past_key_values=_CacheAt(self.cache, positions),
            use_cache=True,
            logits_to_keep=1,
        )
        return made.logits[:, -1].float()

    def _masks(self, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """What each token sees: [1, 1, tokens, context] for all layers, or for each kind of layer."""
        config = self.model.config.get_text_config(decoder=True)
        keys, queries = torch.arange(self.context)[None, :], positions[:, None]
        seen = keys <= queries
        kinds = getattr(config, "layer_types", None) or ()
        if "sliding_attention" not in kinds:
            return _mask(seen)
        near = seen & (keys > queries - config.sliding_window)
        return {"full_attention": _mask(seen), "sliding_attention": _mask(near)}


def _mask(seen: torch.Tensor) -> torch.Tensor:
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]


def model(
    name: str,
    revision: str | None = None,
    task: str | None = None,
    config: Mapping[str, Any] | None = None,
    sequence: int = 512,
) -> ModelDefinition:
    """A language model whose one method, `forward`, takes a prompt or a token, and whose file says how to run it.

    Args:
        name: of a repository in the hub's cache, a folder, or, with a configuration, a ``model_type``.
        revision: the repository's commit.
        task: text-generation.
        config: fields of the configuration that replace its own. The weights are random then.
        sequence: room in the cache: tokens of prompt and answer together, at most.
    """
    place = {"pretrained_model_name_or_path": name, "revision": revision, "local_files_only": True}
    loaded, configuration = load_model(place, task or "text-generation", config)
    text = configuration.get_text_config(decoder=True)
    if unknown := {*(getattr(text, "layer_types", None) or ())} - _LAYERS:
        raise ValueError(
            f"layers of {text.model_type!r} keep other state than keys and values: {', '.join(sorted(unknown))}"
        )
    context = min(sequence, positions_of(configuration))
    cached = CachedModel(loaded, context)
    prompt = example_tokens(place, text.vocab_size, min(8, context - 2))
    length = prompt.shape[1]
    first = prompt, torch.tensor([0])
    later = [(prompt[:, position : position + 1], torch.tensor([length + position])) for position in (0, 1)]
    tokens = Dim("tokens", min=1, max=context)
    return ModelDefinition(
        {"forward": MethodDefinition(cached, [first, *later], ({1: tokens}, None))},
        constant_methods=_constants(loaded, text, context),
        sequences=[[MethodCall("forward", call) for call in (first, *later)]],
        metadata={
            **describe(place, configuration),
            "tokenizer": tokenizer_metadata(place, configuration),
            "context_length": context,
        },
    )


def _constants(loaded: Any, text: PretrainedConfig, context: int) -> dict[str, Any]:
    """What ExecuTorch's text runner asks a file for (extension/llm/runner/constants.h)."""
    generation = getattr(loaded, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None) or getattr(text, "eos_token_id", None)
    bos = getattr(generation, "bos_token_id", None) or getattr(text, "bos_token_id", None)
    known: dict[str, Any] = {
        "get_max_seq_len": context,
        "get_max_context_len": context,
        "get_vocab_size": text.vocab_size,
        "get_n_layers": text.num_hidden_layers,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
        "enable_dynamic_shape": True,
    }
    if eos is not None:
        known["get_eos_ids"] = list(eos) if isinstance(eos, (list, tuple)) else [eos]
    if bos is not None:
        known["get_bos_id"] = bos
    return known
