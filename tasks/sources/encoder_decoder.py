"""Models of an encoder and a decoder that generates text: speech recognition, translation, summaries.

Their files have the methods that ExecuTorch's runner of such models calls (extension/asr/runner/seq2seq_runner.cpp):
`encoder`, with one output, and `text_decoder`, which takes tokens, that output, and the number of tokens before them.
The runner hands the output over without a look at it. So it holds what the decoder's attention makes of the encoder's
states, keys and values, which are the same for every token: they are computed once, by `encoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import Dim
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache

from ...configs.model import MethodCall, MethodDefinition, ModelDefinition
from ...errors import SourceError, first_line
from . import huggingface
from .kv_cache import KvCache, cache_shapes
from .processors import PROCESSORS, VOCABULARIES, assets_of, audio_metadata, without_tokenizer
from .text_generation import check_logits, constants

_TOKENS = ("decoder_start_token_id", "forced_bos_token_id", "no_timestamps_token_id", "begin_suppress_tokens")
"""Settings of generation that the file says under their own names."""


class _Layer(DynamicLayer):
    """Keys and values [1, heads, frames, head size] of one layer, which are there once they are computed."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        self.keys, self.values, self.is_initialized = key_states, value_states, True
        return key_states, value_states


class Encoder(torch.nn.Module):
    """Computes keys and values of the decoder's attention to the encoder's states."""

    def __init__(self, model: Any, layers: int) -> None:
        super().__init__()
        self.model = model
        self.layers = layers

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Encodes a sound's samples or features, or the tokens of a text; batch 1.

        Returns [2 * layers * heads, frames, head size]: keys and values of the first layer, of the second, and so on.
        """
        own, cross = (Cache([_Layer() for _ in range(self.layers)]) for _ in range(2))
        states = self.model.get_encoder()(huggingface.in_dtype(inputs, self.model.dtype))
        token = torch.zeros(1, 1, dtype=torch.int64)
        # Only the decoder's keys and values remain of it when this is exported.
        cache = EncoderDecoderCache(own, cross)
        self.model(encoder_outputs=states, decoder_input_ids=token, cache=cache, use_cache=True)
        return torch.cat([part.squeeze(0) for layer in cross.layers for part in (layer.keys, layer.values)])


class Decoder(torch.nn.Module):
    """Continues after the tokens in its cache. At start 0, it ignores whatever is in the cache."""

    suppressed: torch.Tensor | None

    def __init__(self, model: Any, cache: KvCache, layers: int, states: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.cache = cache
        self.layers = layers
        self.states = states  # the type of what the model's encoder returns
        self.register_buffer("suppressed", None)
        self.finds_language = hasattr(model.generation_config, "lang_to_id")

    def forward(self, tokens: torch.Tensor, encoded: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Computes the logits [1, vocabulary] after tokens [1, tokens] that follow `start` [1] others.

        `encoded` is the output of `encoder`. Suppressed tokens have the least logit of all.
        """
        cross = Cache([_Layer() for _ in range(self.layers)])
        parts = [part.unsqueeze(0) for part in encoded.chunk(2 * self.layers)]
        for layer, keys, values in zip(cross.layers, parts[::2], parts[1::2], strict=True):
            layer.update(keys, values)
        states = self.states(last_hidden_state=encoded[:1])  # only its size is read
        own = self.cache.at(start + torch.arange(tokens.shape[1]), 0)
        cache = EncoderDecoderCache(own, cross)
        output = self.model(encoder_outputs=states, decoder_input_ids=tokens, cache=cache, use_cache=True)
        logits = output.logits[:, -1].float()
        if self.suppressed is None:
            return logits
        suppressed = self.suppressed
        if self.finds_language:  # by the logits after the first token, of which none is suppressed
            suppressed = suppressed & (start + tokens.shape[1] > 1)
        return torch.where(suppressed, logits.amin(dim=-1, keepdim=True), logits)


def model(name: str, **fields: Any) -> ModelDefinition | huggingface.Model:
    """A model with the methods `encoder` and `text_decoder`, or one without a decoder; `fields` as in `Options`."""
    options = huggingface.Options(name, **fields)
    repo = options.repo
    loaded, configuration = options.load()
    if not configuration.is_encoder_decoder:
        return huggingface.Model(name, **fields)
    if options.batch is not None or options.outputs is not None:
        raise SourceError("leave `batch` and `outputs` out: models with an encoder and a decoder have none")
    encoder, decoder, example, prompt = _with_caches(loaded, repo, configuration, options.context)
    sizes = _sizes(example, configuration, options.context, repo)
    largest = [sizes[at].max if sizes and at in sizes else size for at, size in enumerate(example.shape)]
    with torch.no_grad():
        encoded = encoder(example)
        longest = encoder(example.new_zeros(largest)).shape[1]
    parts = ((0, _LEAST - 2), (_LEAST - 2, _LEAST - 1), (_LEAST - 1, _LEAST))
    calls = [(prompt[:, start:end], encoded, torch.tensor([start])) for start, end in parts]
    tokens = {1: Dim("tokens", min=1, max=decoder.cache.context)}
    frames = {1: Dim("frames", min=1, max=longest)} if sizes else None
    sound = {} if example.dtype is torch.int64 else {"audio": audio_metadata(repo)}
    assets = assets_of(repo, (*PROCESSORS, *VOCABULARIES, "generation_config.json"))
    return ModelDefinition(
        {
            "encoder": MethodDefinition(encoder, [(example,)], (sizes,)),
            "text_decoder": MethodDefinition(decoder, calls, (tokens, frames, None)),
        },
        constant_methods=_constants(loaded, decoder, longest),
        assets=assets,
        notes=without_tokenizer(options.name, options.config, assets),
        sequences=[[MethodCall("encoder", (example,)), *(MethodCall("text_decoder", call) for call in calls)]],
        metadata=huggingface.describe_generating(repo, configuration, decoder.cache.context, **sound),
    )


def _with_caches(
    loaded: Any, repo: Mapping[str, Any], config: PretrainedConfig, sequence: int
) -> tuple[Encoder, Decoder, torch.Tensor, torch.Tensor]:
    """Both modules, an input of the encoder and tokens [1, 6] of the decoder; raises SourceError if they do not fit."""
    context = min(sequence, huggingface.positions_of(config, huggingface.TEXT_POSITIONS))
    if context < _LEAST:
        raise SourceError(f"room for {context} tokens is too little: let `sequence` be {_LEAST} or more")
    name = loaded.main_input_name
    if name == "input_ids":
        example = huggingface.example_tokens(repo, config.vocab_size, min(16, sequence))
    elif name in ("input_features", "input_values"):
        example = huggingface.example_sound(repo, config, name, batch=1)
    else:
        raise SourceError(f"{config.model_type!r} encodes `{name}`: inputs of that kind are not known")
    prompt = huggingface.random_tokens(config.vocab_size, 1, _LEAST)
    prompt[0, 0] = _start(loaded)
    with torch.no_grad():
        states = loaded.get_encoder()(huggingface.in_dtype(example, loaded.dtype))
        inputs = {"encoder_outputs": states, "decoder_input_ids": prompt}
        shapes = cache_shapes(loaded, inputs)
        encoder = Encoder(loaded, len(shapes))
        decoder = Decoder(loaded, KvCache(shapes, context).to(loaded.dtype), len(shapes), type(states))
        wanted = loaded(**inputs, use_cache=False).logits[0, -2:].float()
        try:
            encoded = encoder(example)
            before = decoder(prompt[:, :-1], encoded, torch.tensor([0]))
            after = decoder(prompt[:, -1:], encoded, torch.tensor([_LEAST - 1]))
        except (AttributeError, TypeError, RuntimeError) as error:
            raise SourceError(
                f"{config.model_type!r} cannot run with a cache of static size ({first_line(error)}); with "
                "`task: feature-extraction` it is exported without a cache"
            ) from error
    check_logits(torch.cat([before, after]), wanted, loaded)
    decoder.cache.clear()
    decoder.suppressed = _suppressed(loaded, before.shape[-1])
    return encoder, decoder, example, prompt


_LEAST = 6  # tokens of a context that the examples fit into


def _start(loaded: Any) -> int:
    """The token that `generate` begins with."""
    names, settings = ("decoder_start_token_id", "bos_token_id"), (loaded.generation_config, loaded.config)
    tokens = (getattr(where, name, None) for name in names for where in settings)
    return next((int(token) for token in tokens if token is not None), 0)


def _suppressed(loaded: Any, vocabulary: int) -> torch.Tensor | None:
    """Which tokens `generate` never takes, [vocabulary]; None: it may take any."""
    settings = loaded.generation_config
    words = [word[0] for word in settings.bad_words_ids or () if len(word) == 1]
    tokens = [*(getattr(settings, "suppress_tokens", None) or ()), *words]
    if not tokens:
        return None
    return torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, torch.tensor(tokens), value=True)


def _sizes(
    example: torch.Tensor, config: PretrainedConfig, sequence: int, repo: Mapping[str, Any]
) -> dict[int, Any] | None:
    """Dimension 1 of the encoder's input, unless it is fixed: tokens, or a sound's samples."""
    if example.dtype is torch.int64:
        return {1: Dim("length", min=1, max=min(sequence, huggingface.positions_of(config)))}
    if example.dim() == 2:
        rate = audio_metadata(repo).get("sampling_rate", example.shape[1])
        return {1: Dim.AUTO(min=rate // 10, max=huggingface.SECONDS * rate)}
    return None


def _constants(loaded: Any, decoder: Decoder, longest: int) -> dict[str, Any]:
    """What the runners of ExecuTorch and optimum-executorch ask a file for, and how `generate` begins."""
    settings = loaded.generation_config
    tokens = {name: getattr(settings, name, None) for name in _TOKENS}
    return {
        **constants(loaded, decoder.cache.context, own_attention=False),
        "get_n_layers": decoder.layers,
        "max_hidden_seq_length": longest,
        **{name: value for name, value in tokens.items() if value is not None},
        "decoder_start_token_id": _start(loaded),
    }
