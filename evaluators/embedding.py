"""Embeddings: whether what people find similar is near to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from ..errors import SourceError
from .samples import Predict, answer, resolve, rows, samples_of


def embedding_similarity(
    predict: Predict,
    *,
    dataset: str | None = None,
    file: str | None = None,
    read: str | None = None,
    pooling: str | None = None,
    samples: int | None = None,
    method: str = "forward",
    output: int = 0,
) -> float:
    """Spearman's rank correlation of cosine similarities with people's judgements of pairs, from -1 to 1.

    It is the measure of the STS benchmarks: only the order of the similarities counts.

    Args:
        predict: runs the model; its output is one vector, [1, dimensions], or with `pooling` [1, tokens, dimensions].
        dataset: ``package.module:name`` that yields ``(inputs, inputs, score)``.
        file: in place of a dataset, a file with two texts and their score in each line, separated by tabs.
        read: ``package.module:name`` that makes inputs of a text, where the samples have texts.
        pooling: what becomes one vector of those of all tokens: their ``mean``, so texts must not be padded, or the
            ``first`` one.
        samples: how many pairs to take, by default all.
        method: name of the method that runs.
        output: which of its outputs is the embedding.

    Raises:
        SourceError: there are fewer than two pairs, all have one score or similarity, or an output is no vector.
    """
    embed = _embedder(predict, file, read, pooling, method, output)
    files = None if file is None else lambda: _pairs(str(file))
    pairs = samples_of(dataset, files, samples, 3)
    judged = [(_similarity(embed(first), embed(second)), float(score)) for first, second, score in pairs]
    similarities, scores = zip(*judged, strict=True)
    if any(len(set(values)) < 2 for values in (similarities, scores)):
        raise SourceError("the pairs all have one score or one similarity, so there is no order to compare")
    return float(np.corrcoef(_ranks(similarities), _ranks(scores))[0, 1])


def triplet_accuracy(
    predict: Predict,
    *,
    dataset: str | None = None,
    file: str | None = None,
    read: str | None = None,
    pooling: str | None = None,
    samples: int | None = None,
    method: str = "forward",
    output: int = 0,
) -> float:
    """The share of triplets whose anchor is nearer to the positive than to the negative, from 0 to 1.

    Args:
        predict: runs the model; its output is one vector, [1, dimensions], or with `pooling` [1, tokens, dimensions].
        dataset: ``package.module:name`` that yields ``(anchor, positive, negative)``, inputs each.
        file: in place of a dataset, a file with the three texts in each line, separated by tabs.
        read: ``package.module:name`` that makes inputs of a text, where the samples have texts.
        pooling: what becomes one vector of those of all tokens: their ``mean``, so texts must not be padded, or the
            ``first`` one.
        samples: how many triplets to take, by default all.
        method: name of the method that runs.
        output: which of its outputs is the embedding.

    Raises:
        SourceError: there are no triplets, or an output is no vector.
    """
    embed = _embedder(predict, file, read, pooling, method, output)
    files = None if file is None else lambda: rows(str(file), 3)
    ranked = []
    for anchor, positive, negative in samples_of(dataset, files, samples, 3):
        near, far = (_similarity(embed(anchor), embed(other)) for other in (positive, negative))
        ranked.append(near > far)
    return sum(ranked) / len(ranked)


def _pairs(file: str) -> Iterator[tuple[str, str, float]]:
    for first, second, score in rows(file, 3):
        try:
            yield first, second, float(score)
        except ValueError as error:
            raise SourceError(f"{file}: the pair of {first!r} has the score {score!r}: {error}") from error


def _embedder(
    predict: Predict, file: str | None, read: str | None, pooling: str | None, method: str, output: int
) -> Callable[[Any], torch.Tensor]:
    """Embeds inputs; with `read`, which makes inputs of texts, embeds each text once."""

    def embed(inputs: Any) -> torch.Tensor:
        # The runtime may write the next output to the same memory.
        vector = answer(predict, inputs, method, output).detach().double().clone()
        if pooling is not None and vector.dim() == 3:
            vector = vector.mean(1) if pooling == "mean" else vector[:, 0]
        if vector.numel() != vector.shape[-1]:
            raise SourceError(
                f"the model's output is {tuple(vector.shape)}; an embedding of one input is [1, dimensions], "
                "and [1, tokens, dimensions] where `pooling` says what becomes of those of tokens"
            )
        return vector.reshape(-1)

    if pooling not in (None, "mean", "first"):
        raise SourceError(f"`pooling` is mean or first, not {pooling!r}")
    if read is not None:
        make = resolve(read)
        return cache(lambda text: embed(make(text)))
    if file is not None:
        raise SourceError("`file` has texts: name the function that makes a model's inputs of one: `read: module:name`")
    return embed


def _similarity(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
    ranks: list[float] = (np.cumsum(counts) - (counts + 1) / 2)[inverse].tolist()
    return ranks
