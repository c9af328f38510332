"""Perplexity of language models with a KV cache: how surprised they are by a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import SourceError

Predict = Callable[..., Any]


def neg_perplexity(
    predict: Predict,
    *,
    text: str,
    tokenizer: str,
    tokens: int = 512,
    window: int | None = None,
    prompt: int = 1,
    method: str = "forward",
) -> float:
    """The perplexity of a text, negative, so that higher is better.

    The text is read in windows, each with an empty cache. In a window the model gets `prompt` tokens at once, and then
    one after another, as when it generates. Every token after the prompt counts.

    Args:
        predict: runs the model, whose method takes tokens [1, tokens] and their start [1], and returns the logits after
            the last one, as models of `task: text-generation` do.
        text: path of a file, relative to the zoo.
        tokenizer: of transformers: a folder relative to the zoo, or a name of the hub whose files are in its cache.
        tokens: how many of the text's tokens to take at most.
        window: tokens in a window; by default the file's context, ``get_max_context_len``.
        prompt: tokens that a window begins with.
        method: name of the method that runs.

    Raises:
        SourceError: the tokenizer cannot be had, or the text is too short.
    """
    given = _tokens(tokenizer, Path(text))[:tokens]
    context = int(predict(method="get_max_context_len")) if window is None else window
    losses = [loss for part in _windows(given, context, prompt) for loss in _losses(predict, part, prompt, method)]
    if not losses:
        raise SourceError(f"{text} has {len(given)} tokens, and windows begin with {prompt}: give a longer text")
    return -math.exp(sum(losses) / len(losses))


def _tokens(name: str, text: Path) -> list[int]:
    from transformers import AutoTokenizer  # noqa: PLC0415 - takes seconds

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise SourceError(f"there is no tokenizer {name!r}: {error}") from error
    tokens: list[int] = tokenizer(text.read_text(encoding="utf-8"))["input_ids"]
    return tokens


def _windows(tokens: Sequence[int], size: int, prompt: int) -> Iterator[Sequence[int]]:
    if not 1 <= prompt < size:
        raise SourceError(f"prompt: {prompt} must be at least 1, and less than the window of {size} tokens")
    for start in range(0, len(tokens), size):
        yield tokens[start : start + size]


def _losses(predict: Predict, tokens: Sequence[int], prompt: int, method: str) -> Iterator[float]:
    """The negative logarithm of the probability of each token after the prompt."""
    given, start = list(tokens[:prompt]), 0
    for token in tokens[prompt:]:
        logits = predict(torch.tensor([given]), torch.tensor([start]), method=method)
        yield -torch.log_softmax(logits.reshape(-1, logits.shape[-1])[-1].double(), dim=-1)[token].item()
        given, start = [token], start + len(given)
