"""Buckets: methods of a file that are one method of the model in several static sizes, and which of them inputs fit.

A file has an entry in its metadata for each: a `Bucket` as JSON, whose key is `BUCKETS` and the method's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from ...errors import FileFormatError, InputError

BUCKETS = "buckets."  # before the name of the method, behind the prefix of metadata


class Bucket(BaseModel):
    """A method with static sizes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str  # of the method in the file
    method: str  # of the model
    sizes: dict[str, NonNegativeInt]  # by name of the dimension
    # position, dimension, size and the dimension's name, of each static dimension of an input
    inputs: tuple[tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt, str], ...] = ()
    # Value that fills each input, by position. Empty if padding would change the outputs, or values are unknown.
    padding: tuple[int | float | None, ...] = ()
    # output, dimension, input and the input's dimension, of what is cut where inputs were padded
    outputs: tuple[tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt, NonNegativeInt], ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(f'{name} {size}' for name, size in self.sizes.items())})"

    def problem(self, inputs: Sequence[Any]) -> str:
        """Why inputs do not fit, padded or not; empty if they do."""
        given: dict[tuple[str, int], int] = {}
        for position, dimension, most, name in self.inputs:
            shape = getattr(inputs[position], "shape", ()) if position < len(inputs) else ()
            if dimension >= len(shape):
                return f"input {position} has no dimension {dimension}"
            if (size := shape[dimension]) > most:
                return f"input {position} has size {size} in dimension {dimension}, more than {most}"
            if given.setdefault((name, most), size) != size:
                return f"inputs have several sizes in the dimension {name!r}"
        return ""

    def pad(self, inputs: Sequence[Any]) -> list[Any]:
        """Tensors that fit, filled up behind their values; others as they are."""
        shapes = {position: list(inputs[position].shape) for position, *_ in self.inputs}
        for position, dimension, size, _ in self.inputs:
            shapes[position][dimension] = size
        padded = list(inputs)
        for position, shape in shapes.items():
            padded[position] = inputs[position].new_full(shape, self.padding[position])
            padded[position][tuple(map(slice, inputs[position].shape))] = inputs[position]
        return padded

    def cut(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Outputs for padded inputs as they are for those that were given."""
        kept = list(outputs)
        for number, dimension, position, of_input in self.outputs:
            kept[number] = kept[number].narrow(dimension, 0, inputs[position].shape[of_input])
        return kept


def read_buckets(metadata: Mapping[str, object]) -> dict[str, list[Bucket]]:
    """The buckets of each method of the model, the smallest first; raises FileFormatError if an entry is damaged."""
    buckets: dict[str, list[Bucket]] = {}
    for key, entry in metadata.items():
        if key.startswith(BUCKETS):
            try:
                bucket = Bucket.model_validate_json(str(entry))
            except ValidationError as error:
                raise FileFormatError(f"damaged metadata {key!r}: {error}") from error
            buckets.setdefault(bucket.method, []).append(bucket)
    for own in buckets.values():
        own.sort(key=lambda bucket: math.prod(bucket.sizes.values()))
    return buckets


def choose_bucket(buckets: Sequence[Bucket], inputs: Sequence[Any]) -> Bucket:
    """The smallest bucket that inputs fit, given the smallest first; raises InputError if they are too large."""
    problems = [bucket.problem(inputs) for bucket in buckets]
    if "" not in problems:
        largest = buckets[-1]
        raise InputError(f"no bucket of {largest.method!r} takes the inputs; the largest is {largest}: {problems[-1]}")
    return buckets[problems.index("")]


def fit_bucket(buckets: Sequence[Bucket], inputs: Sequence[Any]) -> tuple[Bucket, list[Any]]:
    """The smallest bucket that inputs fit, and the padded inputs; raises InputError if they cannot be padded to fit."""
    bucket = choose_bucket(buckets, inputs)
    if all(inputs[position].shape[dimension] == size for position, dimension, size, _ in bucket.inputs):
        return bucket, list(inputs)
    if not bucket.padding:
        raise InputError(
            f"the inputs are smaller than those of {bucket}, and the file does not say how to pad them without "
            f"changing the outputs: pad them, and run {bucket.name!r}"
        )
    return bucket, bucket.pad(inputs)
