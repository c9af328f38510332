"""Classification: how often the right class is among those with the highest scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..errors import SourceError
from .samples import Predict, answer, listed, reader, samples_of


def top_k(
    predict: Predict,
    *,
    dataset: str | None = None,
    folder: str | None = None,
    read: str | None = None,
    classes: Sequence[str] | None = None,
    k: int = 1,
    samples: int | None = None,
    method: str = "forward",
    output: int = 0,
) -> float:
    """The share of samples whose class is among the `k` with the highest scores, from 0 to 1.

    Args:
        predict: runs the model; its output has one score for each class in the last dimension: [n, classes].
        dataset: ``package.module:name`` that yields ``(inputs, label)``: the number of the class, or a tensor of n.
        folder: in place of a dataset, a folder with one folder for each class.
        read: ``package.module:name`` that makes inputs of a path, by default `samples.read_tensor`.
        classes: names of the folders in the order of the model's classes, by default sorted.
        k: how many classes count.
        samples: how many samples to take, by default all.
        method: name of the method that runs.
        output: which of its outputs has the scores.

    Raises:
        SourceError: there are no samples, or the output has fewer than `k` scores.
    """
    right = total = 0
    files = None if folder is None else lambda: _files(str(folder), read, classes)
    for inputs, label in samples_of(dataset, files, samples, 2):
        scores = answer(predict, inputs, method, output)
        labels = torch.as_tensor(label).reshape(-1)
        if scores.dim() == 0 or scores.shape[-1] < k or scores.numel() != len(labels) * scores.shape[-1]:
            raise SourceError(
                f"the model's output is {tuple(scores.shape)}; top_k takes [labels, classes], here with {len(labels)} "
                f"labels and {k} or more classes"
            )
        best = scores.reshape(len(labels), -1).topk(k).indices
        right += int((best == labels.unsqueeze(1)).any(1).sum())
        total += len(labels)
    return right / total


def _files(folder: str, read: str | None, classes: Sequence[str] | None) -> Iterator[tuple[Any, int]]:
    folders = {path.name: path for path in listed(folder) if path.is_dir()}
    if unknown := sorted(set(folders) - set(classes or folders)):
        raise SourceError(f"{folder} has the folders {unknown}, which are not among `classes`")
    make = reader(read)
    for number, name in enumerate(classes or folders):
        yield from ((make(path), number) for path in (listed(folders[name]) if name in folders else ()))
