"""Segmentation: how well predicted regions cover those that people have drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate, pad

from ..errors import SourceError
from .samples import Predict, answer, listed, reader, samples_of


def mean_iou(
    predict: Predict,
    *,
    dataset: str | None = None,
    folder: str | None = None,
    read: str | None = None,
    read_mask: str | None = None,
    ignore: int = 255,
    samples: int | None = None,
    method: str = "forward",
    output: int = 0,
) -> float:
    """The mean over classes of intersection over union, from 0 to 1; classes that appear nowhere do not count.

    Intersections and unions are summed over all samples first, as for PASCAL VOC and Cityscapes.

    Args:
        predict: runs the model. Its output has scores, float [1, classes, height, width], which are resized to the mask
            and of which one class has a logit that is positive in the region; or numbers of classes, integer.
        dataset: ``package.module:name`` that yields ``(inputs, mask)``; masks have numbers of classes [height, width].
        folder: in place of a dataset, a folder with ``images`` and ``masks``, in which names without suffix are equal.
        read: ``package.module:name`` that makes inputs of an image's path, by default `samples.read_tensor`.
        read_mask: the same for masks.
        ignore: number of pixels that do not count.
        samples: how many samples to take, by default all.
        method: name of the method that runs.
        output: which of its outputs has the scores.

    Raises:
        SourceError: there are no samples, an image has no mask, or an output is no segmentation.
    """
    files = None if folder is None else lambda: _files(Path(str(folder)), read, read_mask)
    both, either = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    for inputs, truth in samples_of(dataset, files, samples, 2):
        mask = torch.as_tensor(truth).squeeze()
        if mask.dim() != 2:
            raise SourceError(f"a mask is {tuple(mask.shape)}, and must be [height, width]")
        predicted = _classes(answer(predict, inputs, method, output), mask)
        counts = mask != ignore
        wanted, predicted = mask[counts].long(), predicted[counts].long()
        size = max([len(both), *(int(values.max()) + 1 for values in (wanted, predicted) if len(values))])
        pairs = torch.bincount(wanted * size + predicted, minlength=size * size).reshape(size, size)
        overlap = pairs.diagonal()
        both = _sum(both, overlap)
        either = _sum(either, pairs.sum(0) + pairs.sum(1) - overlap)
    if not either.any():
        raise SourceError(f"all pixels of all masks are {ignore}, which are ignored")
    return float((both[either > 0] / either[either > 0]).mean())


def _classes(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The class of each pixel of a mask."""
    if scores.is_floating_point() and scores.dim() == 4 and len(scores) == 1:
        (resized,) = interpolate(scores.float(), mask.shape[-2:], mode="bilinear", align_corners=False)
        return resized.argmax(0) if len(resized) > 1 else (resized[0] > 0).long()
    classes = scores.squeeze()
    if scores.is_floating_point() or classes.shape != mask.shape:
        raise SourceError(
            f"the model's output is {scores.dtype} {tuple(scores.shape)} for a mask of {tuple(mask.shape)}; mean_iou "
            "takes float [1, classes, height, width], or integers of the size of the mask"
        )
    return classes


def _files(folder: Path, read: str | None, read_mask: str | None) -> Iterator[tuple[Any, Any]]:
    masks = {path.stem: path for path in listed(folder / "masks")}
    make, make_mask = reader(read), reader(read_mask)
    for path in listed(folder / "images"):
        if path.stem not in masks:
            raise SourceError(f"{path} has no mask: there is no {folder / 'masks' / path.stem}.*")
        yield make(path), make_mask(masks[path.stem])


def _sum(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The sum of two vectors, the shorter one padded with zeros."""
    size = max(len(one), len(other))
    return pad(one, (0, size - len(one))) + pad(other, (0, size - len(other)))
