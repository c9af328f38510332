"""calibration: the samples that quantizers observe, one after another from the user's dataset into the store."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils import _pytree as pytree

from ...artifacts.programs.values import save_values
from ...artifacts.ref import ArtifactRef
from ...errors import SourceError, StoreError
from ..params import CalibrationParams
from ..stage import Workspace
from .source import seed_everything


def run(inputs: Mapping[str, ArtifactRef], params: CalibrationParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes nothing, gives `samples`: flat inputs, as many as there are up to the cap.

    Raises:
        SourceError: the dataset cannot be had, raises, or gives nothing, or something that is no input.
    """
    del inputs
    os.chdir(work.folder)
    seed_everything(params.seed)
    name = params.source["builder"]
    samples = itertools.islice(_samples(name, params.source["kwargs"]), params.samples)
    first = next(samples, None)
    if first is None:
        raise SourceError(f"dataset {name} gives no sample")
    try:
        return {"samples": save_values(itertools.chain([first], samples), kind="samples", store=work.store)}
    except StoreError as error:
        raise SourceError(f"dataset {name}: a sample cannot be an input: {error}") from error


def _samples(name: str, kwargs: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Flat inputs of the dataset's samples."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        dataset: Iterable[Any] = found(**kwargs) if callable(found) else found
        for sample in dataset:
            yield pytree.tree_leaves(sample if isinstance(sample, tuple) else (sample,))
    except SourceError:
        raise
    except Exception as error:
        raise SourceError(f"dataset {name} failed: {type(error).__name__}: {error}") from error
