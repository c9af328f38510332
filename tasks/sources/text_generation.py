"""Language models with a static KV cache in buffers, which ExecuTorch's text runner calls, and their tokenizers."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.export import Dim

from ...configs.model import MethodCall, MethodDefinition, ModelDefinition
from ...errors import SourceError
from . import huggingface
from .kv_cache import START, KvCache, Shapes, States, cached_parts
from .processors import tokenizer_files, without_tokenizer


class CachedModel(torch.nn.Module):
    """A language model that continues after the tokens in its cache.

    Attributes:
        all_logits: computes those after every token, for whoever observes layers, and returns the last ones.
        every: returns those after every token, [1, tokens, vocabulary].
    """

    all_logits = every = False

    def __init__(self, model: Any, cache: KvCache, *, passes_start: bool = False) -> None:
        super().__init__()
        self.model = model
        self.cache = cache
        parameters = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        self._passes_start = passes_start

    def forward(self, tokens: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Computes the logits [1, vocabulary] after the last of tokens [1, tokens] that follow `start` [1] others.

        With `every`, those after each of them.
        """
        return self.run(start, tokens.shape[1], input_ids=tokens)

    def run(self, start: torch.Tensor, length: int, **inputs: Any) -> torch.Tensor:
        """Computes the logits [1, vocabulary] after the last of `length` tokens from the model's inputs for them."""
        positions = start + torch.arange(length)
        if self._takes_positions:
            inputs = {"position_ids": self.cache.rotary_positions(positions)[None], **inputs}
        if self.cache.sinks:
            inputs["attention_mask"] = self.cache.mask(positions)
        first = 0
        if self._passes_start:
            first = inputs[START] = 0 if self.cache.sinks else self._first(start, length)
        last = {"logits_to_keep": 1} if self._keeps_logits and not (self.all_logits or self.every) else {}
        output = self.model(cache=self.cache.at(positions, first), use_cache=True, **inputs, **last)
        return (output.logits if self.every else output.logits[:, -1]).float()

    def _first(self, start: torch.Tensor, tokens: int) -> int:
        """The start as a number, with the bounds that operators need."""
        first: Any = start[0].item()
        for bound in (first >= 0, first < self.cache.context, first + tokens <= self.cache.context):
            torch._check(bound)  # noqa: SLF001 - torch's documentation has it
        return first  # type: ignore[no-any-return]  # a number, symbolic while it is traced


def model(name: str, **fields: Any) -> ModelDefinition:
    """A language model whose one method, `forward`, takes a prompt or a token; `fields` as in `Options`."""
    options = huggingface.Options(name, **fields)
    repo, sinks = options.repo, options.sinks
    loaded, configuration = options.load("text-generation")
    text = configuration.get_text_config(decoder=True)
    context, least = min(options.context, huggingface.positions_of(configuration)), _LEAST + sinks
    if sinks:  # positions go up to two windows after the sinks
        context = min(context, sinks + (huggingface.positions_of(configuration) - sinks) // 2)
    if context < least:
        raise SourceError(f"a context of {context} tokens is too short: let `sequence` be {least} or more")
    prompt = huggingface.example_tokens(repo, text.vocab_size, min(8, context - 2))
    if prompt.shape[1] < 2:
        prompt = huggingface.random_tokens(text.vocab_size, 1, min(8, context - 2))
    cached = _with_cache(loaded, prompt, context, options)
    cached.every = options.logits == "all"
    single = cached.cache.recurrent
    for field in ("prefill", "tokens_per_call"):
        if single and getattr(options, field):
            kind = text.model_type
            raise SourceError(f"{field}: recurrent layers of {kind!r} take one token at a time; leave it out")
    most = 1 if single else min(options.tokens_per_call or context, context)
    calls = [_calls(prompt, most=most)]
    if window := cached.cache.longest_window:
        beyond = huggingface.random_tokens(text.vocab_size, 1, min(window + 2, context - 2))
        calls.append(_calls(*[beyond] * (2 if sinks else 1), most=most))
    shapes = None if single else ({1: Dim("tokens", min=1, max=most)}, None)
    first, *later = calls[0]
    methods = {"forward": MethodDefinition(cached, calls[0], shapes)}
    if options.prefill:
        prefill = MethodDefinition(cached, [first], shapes)
        methods = {"prefill": prefill, STEP: MethodDefinition(cached, later)}
    endless = {"get_max_context_len": _ENDLESS} if sinks else {}
    call_length = {"get_max_seq_len": most, "enable_dynamic_shape": not single}

    def method(call: tuple[torch.Tensor, ...]) -> str:
        return "forward" if not options.prefill else STEP if call[0].shape[1] == 1 else "prefill"

    assets = tokenizer_files(repo)
    return ModelDefinition(
        methods,
        constant_methods=constants(loaded, context, own_attention=options.attention is not None)
        | endless
        | call_length,
        assets=assets,
        notes=without_tokenizer(options.name, options.config, assets),
        sequences=[[MethodCall(method(call), call) for call in sequence] for sequence in calls],
        metadata=huggingface.describe_generating(repo, configuration, None if sinks else context),
    )


def _calls(*prompts: torch.Tensor, most: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Calls with each prompt [1, tokens] and, after it, two of its tokens, at positions that follow each other.

    Each call has `most` tokens at most.
    """
    calls, start = list[tuple[torch.Tensor, torch.Tensor]](), 0
    for prompt in prompts:
        for part in (prompt, prompt[:, :1], prompt[:, 1:2]):
            for tokens in part.split(most, 1):
                calls.append((tokens, torch.tensor([start])))
                start += tokens.shape[1]
    return calls


STEP = "decode_step"
"""The method that takes one token.

ExecuTorch's text runner (executorch 1.5.1) takes `prefill` for prompts and tokens. It would run a method `decode`
without the cache that `prefill` has filled, because its module gives each method memory of its own.
"""

# What ExecuTorch's text runner counts to; where files take fewer tokens at once, it does not stop at the context.
_ENDLESS = 2**31 - 1
_LEAST = 4  # tokens of a context that the examples fit into
_CHECKED = 1026  # tokens at most, with which a cache is compared to the model without one: a window and more
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05, "int8": 0.2}
"""How far the largest logit may be off, as a part of it, by what the cache holds: the order of additions differs."""


def _with_cache(loaded: Any, prompt: torch.Tensor, context: int, options: huggingface.Options) -> CachedModel:
    """The model with a cache; raises SourceError if it has none, or its logits differ from those without a cache."""
    shapes, states = cached_parts(loaded, {"input_ids": prompt})
    if options.sinks:
        _check_sinks(loaded, shapes, states)
    windows = [shape.window for shape in shapes if shape and shape.window and shape.window < context]
    if (more := min(max(windows, default=0) + 2, _CHECKED) - prompt.shape[1]) > 0:
        vocabulary = loaded.config.get_text_config(decoder=True).vocab_size
        added = huggingface.random_tokens(vocabulary, 1, min(more, context - prompt.shape[1]))
        prompt = torch.cat([prompt, added], dim=1)
    with torch.no_grad():
        wanted = loaded(input_ids=prompt, use_cache=False).logits[0, -2:].float()
    cache = make_cache(loaded, shapes, context, options)
    cache.add_states(states)
    cached = CachedModel(loaded, cache, passes_start=options.attention is not None)
    parts = prompt.split(1, 1) if cache.recurrent else (prompt[:, :-1], prompt[:, -1:])
    logits, start = list[torch.Tensor](), 0
    with torch.no_grad():
        for tokens in parts:
            logits.append(cached(tokens, torch.tensor([start])))
            start += tokens.shape[1]
    cache.clear()
    check_logits(torch.cat(logits[-2:]), wanted, loaded, options.cache)
    return cached


def _check_sinks(loaded: Any, shapes: Shapes, states: States) -> None:
    """Raises SourceError if a model cannot repeat positions, or has windows of its own."""
    text = loaded.config.get_text_config(decoder=True)
    rotary = getattr(text, "rope_parameters", None) and not getattr(text, "alibi", False)
    if not rotary or "position_ids" not in inspect.signature(loaded.forward).parameters:
        raise SourceError(f"sinks: {text.model_type!r} has no rotary position embeddings; leave it out")
    if any(states):
        raise SourceError(f"sinks: layers of {text.model_type!r} keep other state than keys and values; leave it out")
    if any(shape and shape.window for shape in shapes):
        raise SourceError(f"sinks: layers of {text.model_type!r} have sliding windows of their own; leave it out")


def make_cache(model: Any, shapes: Shapes, context: int, options: huggingface.Options) -> KvCache:
    """A cache for the options `attention`, `cache` and `sinks`; lets the model use the operators that read it."""
    kind: type[KvCache] = KvCache
    if options.attention is not None:
        from . import executorch_attention  # noqa: PLC0415 - takes seconds

        executorch_attention.switch_attention(model)
        kind = executorch_attention.CACHES[options.cache]
    cache = kind(shapes, context, options.sinks)
    cache.to(model.dtype)
    return cache


STATIC_CACHE = (
    "with a cache of static size than without, because its code does not take positions and masks from transformers' "
    "cache"
)


def check_logits(
    actual: torch.Tensor, wanted: torch.Tensor, loaded: Any, cache: str | None = None, how: str = STATIC_CACHE
) -> None:
    """Raises SourceError if a model with a cache computes other logits than without."""
    if (actual - wanted).abs().max() > _TOLERANCES[cache or loaded.dtype] * wanted.abs().max():
        name = loaded.config.get_text_config(decoder=True).model_type
        raise SourceError(
            f"{name!r} computes other logits {how}: ExecuTorch's runners cannot use it; with `task: "
            "feature-extraction` it is exported without a cache"
        )


def constants(loaded: Any, context: int, *, own_attention: bool) -> dict[str, Any]:
    """Constant methods that ExecuTorch's text runner calls (extension/llm/runner/constants.h)."""
    text = loaded.config.get_text_config(decoder=True)
    methods: dict[str, Any] = {
        "get_max_seq_len": context,
        "get_max_context_len": context,
        "get_vocab_size": text.vocab_size,
        "get_n_layers": text.num_hidden_layers,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": own_attention,
        "enable_dynamic_shape": True,
    }
    generation = getattr(loaded, "generation_config", None)

    def token_of(field: str) -> Any:
        tokens = (getattr(settings, field, None) for settings in (generation, text))
        return next((token for token in tokens if token is not None), None)

    eos, bos = token_of("eos_token_id"), token_of("bos_token_id")
    if eos is not None:
        methods["get_eos_ids"] = list(eos) if isinstance(eos, (list, tuple)) else [eos]
    if bos is not None:
        methods["get_bos_id"] = bos
    return methods
