"""Scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels, which ship with the library."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Images = tuple[torch.Tensor, torch.Tensor]
"""Images, float32 [n, 1, 8, 8] from 0 to 1, and their digits, int64 [n]."""


def split() -> tuple[Images, Images]:
    """Returns two thirds for training and one third for testing: a fixed split, stratified by digit."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    chosen, held_out = train_test_split(range(len(labels)), test_size=1 / 3, random_state=0, stratify=labels)
    return (images[chosen], labels[chosen]), (images[held_out], labels[held_out])


def test_images() -> Iterator[tuple[torch.Tensor, int]]:
    """Yields the images that the files are scored on, one at a time, each with its digit."""
    _, (images, labels) = split()
    yield from zip(images.split(1), labels.tolist(), strict=True)


def training_images() -> Iterator[torch.Tensor]:
    """Yields the calibration samples: training images, one at a time."""
    (images, _), _ = split()
    yield from images.split(1)
