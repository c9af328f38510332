"""A small Llama with random weights and a KV cache: `prefill` takes a prompt, `decode` one token after another.

Both methods run the same module, so they share weights and cache.
"""

from __future__ import annotations

import torch
from pteforge import MethodCall, MethodDefinition, ModelDefinition
from torch.export import Dim
from transformers import LlamaConfig, LlamaForCausalLM


class KvCache(torch.nn.Module):
    """Keys and values of every layer, each of shape [1, heads, context, head size]."""

    def __init__(self, config: LlamaConfig, context: int) -> None:
        """Makes an empty cache.

        Args:
            config: of the model.
            context: maximum number of tokens.
        """
        super().__init__()
        head_size = config.hidden_size // config.num_attention_heads
        for layer in range(config.num_hidden_layers):
            for what in ("keys", "values"):
                empty = torch.zeros(1, config.num_key_value_heads, context, head_size)
                self.register_buffer(f"{what}_{layer}", empty)


class CacheAt:
    """The cache interface of `transformers`, for the tokens at given positions."""

    is_compileable = True

    def __init__(self, cache: KvCache, positions: torch.Tensor) -> None:
        """Keeps references.

        Args:
            cache: written by `update`.
            positions: [tokens], int64.
        """
        self.cache = cache
        self.positions = positions

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, **options: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the keys and values of the tokens; returns those of all positions. Masks hide future ones."""
        del options  # of other caches
        kept_keys, kept_values = (self.cache.get_buffer(f"{what}_{layer_idx}") for what in ("keys", "values"))
        return kept_keys.index_copy_(2, self.positions, keys), kept_values.index_copy_(2, self.positions, values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Unused: positions and masks are passed explicitly."""
        del layer_idx
        return 0


class CachedLlama(torch.nn.Module):
    """A Llama that continues from the tokens in its cache."""

    def __init__(self, config: LlamaConfig, context: int) -> None:
        """Makes random weights.

        Args:
            config: of the model.
            context: maximum number of tokens, prompt and answer together.
        """
        super().__init__()
        self.model = LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)
        self.cache = KvCache(config, context)
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
        visible = torch.arange(self.context)[None, :] <= positions[:, None]
        mask = torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]
        outputs = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions[None],
            cache=CacheAt(self.cache, positions),
            logits_to_keep=1,
        )
        return outputs.logits[:, -1]


def small_llama(
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    vocabulary: int = 256,
    context: int = 64,
    feed_forward: int = 0,
) -> ModelDefinition:
    """Builds the model with both methods.

    Args:
        layers: number of layers.
        width: of the hidden states.
        heads: of attention; half as many for keys and values.
        vocabulary: number of distinct tokens; embedding and head have separate weights.
        context: maximum number of tokens, prompt and answer together.
        feed_forward: width of the feed-forward layers; 0 means four times `width`.
    """
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=feed_forward or 4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    net = CachedLlama(config, context)
    prompt, length = torch.randint(vocabulary, (1, 7)), Dim("length", min=2, max=context - 1)
    first, later = (
        (prompt, torch.tensor([0])),
        [(torch.tensor([[token]]), torch.tensor([7 + token])) for token in (0, 1)],
    )
    return ModelDefinition(
        {
            "prefill": MethodDefinition(net, [first], ({1: length}, None)),
            "decode": MethodDefinition(net, [later[0]]),
        },
        constant_methods={"get_max_seq_len": context, "get_vocab_size": vocabulary, "use_kv_cache": True},
        sequences=[[MethodCall("prefill", first), *(MethodCall("decode", call) for call in later)]],
    )
