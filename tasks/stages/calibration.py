"""calibration: the samples that quantizers observe, one after another from the user's dataset into the store."""

from __future__ import annotations

import itertools
import os
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.utils import _pytree as pytree

from ...artifacts.programs.values import save_values
from ...artifacts.ref import ArtifactRef
from ...errors import SourceError, StoreError
from ..source_params import CalibrationParams
from ..stage import Workspace
from .counted import counted
from .source import seed_everything
from .user_code import failed


def run(inputs: Mapping[str, ArtifactRef], params: CalibrationParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes nothing, gives `samples`: flat inputs, as many as there are up to the cap.

    Raises:
        SourceError: the dataset cannot be had, raises, or gives nothing, or something that is no input.
    """
    del inputs
    os.chdir(work.folder)
    seed_everything(params.seed)
    name = params.source["builder"]
    dataset = _dataset(name, params.source["kwargs"])
    total = _length(dataset, params.samples)
    samples = itertools.islice(_samples(name, dataset), params.samples)
    first = next(samples, None)
    if first is None:
        raise SourceError(f"dataset {name} gives no sample")
    try:
        every = counted(itertools.chain([first], samples), total, work.progressed)
        return {"samples": save_values(every, kind="samples", store=work.store)}
    except StoreError as error:
        raise SourceError(f"dataset {name}: a sample cannot be an input: {error}") from error


def _dataset(name: str, kwargs: Mapping[str, Any]) -> Iterable[Any]:
    with _blaming(name):
        found: Any = pkgutil.resolve_name(name)
        dataset: Iterable[Any] = found(**kwargs) if callable(found) else found
        return dataset


def _length(dataset: Any, most: int) -> int | None:
    """How many samples there will be; None for a dataset that does not say."""
    try:
        return min(len(dataset), most)
    except (TypeError, NotImplementedError):
        return None


def _samples(name: str, dataset: Iterable[Any]) -> Iterator[list[Any]]:
    """Flat inputs of the dataset's samples."""
    with _blaming(name):
        for sample in dataset:
            yield pytree.tree_leaves(sample if isinstance(sample, tuple) else (sample,))


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Says of which dataset an error is."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        raise failed(f"dataset {name}", error) from error
