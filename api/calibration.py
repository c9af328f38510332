"""What a caller gives for quantizers to observe, in place of the example inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ..configs.sources import Dataset
from ..errors import InputError, SourceError
from ..tasks.keys.builder import find_builder
from ..tasks.keys.search import ModuleSearch
from ..tasks.model import PlannedRecipe
from .source import by_method

Samples: TypeAlias = tuple[Any, ...] | Iterable[Any] | Dataset | str
"""One sample as a tuple of positional inputs; an iterable of such tuples, or of only inputs; or a dataset by name."""


@dataclass(frozen=True)
class Calibration:
    """What is given, by method.

    Attributes:
        samples: of methods whose samples are in this process; each is gone through once.
        datasets: of methods whose samples come from a dataset that is named.
    """

    samples: Mapping[str, Iterable[Any]] = field(default_factory=dict)
    datasets: Mapping[str, Dataset] = field(default_factory=dict)


def asked_calibration(
    given: Samples | Mapping[str, Samples] | None, methods: tuple[str, ...], recipe: PlannedRecipe
) -> Calibration:
    """Checks what a caller gives; takes no sample yet.

    Args:
        given: see `pteforge.export`.
        methods: all of the model's.
        recipe: what is to be made of it.

    Raises:
        InputError: the recipe does not quantize it, there is no such method or dataset, or it is no samples at all.
    """
    if given is None:
        return Calibration()
    if not recipe.quantizers:
        raise InputError(
            f"calibration is given, but the recipe {recipe.name!r} has no `quantize`; leave one of them out"
        )
    samples: dict[str, Iterable[Any]] = {}
    datasets: dict[str, Dataset] = {}
    for method, each in by_method(given, methods, "calibration").items():
        if not recipe.recipe.quantizes(method):
            raise InputError(f"calibration of method {method!r}: the recipe {recipe.name!r} does not quantize it")
        if isinstance(each, str | Dataset):
            datasets[method] = _dataset(method, each)
        else:
            samples[method] = _iterable(method, each)
    return Calibration(samples, datasets)


def _dataset(method: str, given: str | Dataset) -> Dataset:
    name = given if isinstance(given, str) else given.dataset
    try:
        find_builder(name, ModuleSearch(()))
    except SourceError as error:
        raise SourceError(f"calibration of method {method!r}: {error}") from error
    return Dataset(dataset=given) if isinstance(given, str) else given


def _iterable(method: str, given: Any) -> Iterable[Any]:
    if isinstance(given, tuple):
        return [given]
    if isinstance(given, torch.Tensor | Mapping) or not isinstance(given, Iterable):
        raise SourceError(
            f"calibration of method {method!r} is a {type(given).__name__}; give a tuple of positional inputs, "
            "an iterable of such tuples, or package.module:name of a dataset"
        )
    return given
