"""Language models with a KV cache, as ExecuTorch's text runner loads and calls them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import Dim
from transformers import PretrainedConfig

from ...configs.definition import MethodCall, MethodDefinition, ModelDefinition
from .huggingface import example_tokens, load_model, positions_of
from .kv_cache import KvCache, cache_shapes
from .tokenizer_files import tokenizer_files


class CachedModel(torch.nn.Module):
    """A language model that goes on from the tokens in its cache."""

    def __init__(self, model: Any, cache: KvCache) -> None:
        super().__init__()
        self.model = model
        self.cache = cache
        taken = inspect.signature(model.forward).parameters
        self._options = {"use_cache": True, **({"logits_to_keep": 1} if "logits_to_keep" in taken else {})}
        self._takes_positions = "position_ids" in taken

    def forward(self, tokens: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Computes the logits after the last token.

        Args:
            tokens: [1, tokens], int64.
            start: [1], int64: number of tokens before them.

        Returns:
            [1, vocabulary].
        """
        positions = start + torch.arange(tokens.shape[1])
        given = {"position_ids": positions[None]} if self._takes_positions else {}
        made = self.model(input_ids=tokens, past_key_values=self.cache.at(positions), **given, **self._options)
        return made.logits[:, -1].float()


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
    context = min(sequence, positions_of(configuration))
    prompt = example_tokens(place, text.vocab_size, min(8, context - 2))
    cached = CachedModel(loaded, KvCache(cache_shapes(loaded, prompt), context))
    _check_equal(cached, prompt)
    length = prompt.shape[1]
    first = prompt, torch.tensor([0])
    later = [(prompt[:, position : position + 1], torch.tensor([length + position])) for position in (0, 1)]
    tokens = Dim("tokens", min=1, max=context)
    return ModelDefinition(
        {"forward": MethodDefinition(cached, [first, *later], ({1: tokens}, None))},
        constant_methods=_constants(loaded, text, context),
        assets=tokenizer_files(place),
        sequences=[[MethodCall("forward", call) for call in (first, *later)]],
    )


_TOLERANCE = 1e-3  # relative to the largest logit: the order of additions differs


def _check_equal(cached: CachedModel, tokens: torch.Tensor) -> None:
    """Raises ValueError if the model does not compute with this cache what it computes without any."""
    with torch.no_grad():
        wanted = cached.model(input_ids=tokens, use_cache=False).logits[0, -2:].float()
        before = cached(tokens[:, :-1], torch.tensor([0]))
        after = cached(tokens[:, -1:], torch.tensor([tokens.shape[1] - 1]))
    cached.cache.clear()
    if (torch.cat([before, after]) - wanted).abs().max() > _TOLERANCE * wanted.abs().max():
        raise ValueError(
            f"{cached.model.config.model_type!r} computes other logits with a cache of static size than without: its "
            "code does not take the positions in the cache from transformers' cache, so that ExecuTorch's text runner "
            "cannot use it"
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
