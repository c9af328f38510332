"""calibration: the samples that quantizers observe, one after another from the user's dataset into the store."""

from __future__ import annotations

import itertools
import os
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils import _pytree as pytree

from ...artifacts.local_store import LocalStore
from ...artifacts.programs.values import count_values, save_values
from ...artifacts.ref import ArtifactRef
from ...errors import SourceError, StoreError
from ..progress import Progressed, unheard
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
    what = f"dataset {name}"
    dataset = _dataset(what, name, params.source["kwargs"])
    samples = itertools.islice(flat_samples(what, dataset), params.samples)
    total = _length(dataset, params.samples)
    return {"samples": save_samples(what, samples, work.store, total=total, progressed=work.progressed)}


def save_samples(
    what: str,
    samples: Iterable[Sequence[Any]],
    store: LocalStore,
    *,
    total: int | None = None,
    progressed: Progressed = unheard,
) -> ArtifactRef:
    """Stores samples one after another (samples): never more than one is in memory.

    Args:
        what: where they come from, for messages.
        samples: flat inputs.
        store: takes them.
        total: how many there will be, where that is known.
        progressed: told of each.

    Raises:
        SourceError: there is none, or one that is no input.
    """
    try:
        ref = save_values(counted(samples, total, progressed), kind="samples", store=store)
    except StoreError as error:
        raise SourceError(f"{what}: a sample cannot be an input: {error}") from error
    if not count_values(ref, store):
        raise SourceError(f"{what} gives no sample")
    return ref


def flat_samples(what: str, dataset: Iterable[Any]) -> Iterator[list[Any]]:
    """Flat inputs of a dataset's samples, each a tuple of positional inputs or the only input.

    Raises:
        SourceError: whatever the dataset raises; `what` it is comes first.
    """
    with _blaming(what):
        for sample in dataset:
            yield pytree.tree_leaves(sample if isinstance(sample, tuple) else (sample,))


def _dataset(what: str, name: str, kwargs: Mapping[str, Any]) -> Iterable[Any]:
    with _blaming(what):
        found: Any = pkgutil.resolve_name(name)
        dataset: Iterable[Any] = found(**kwargs) if callable(found) else found
        return dataset


def _length(dataset: Any, most: int) -> int | None:
    """How many samples there will be; None for a dataset that does not say."""
    try:
        return min(len(dataset), most)
    except (TypeError, NotImplementedError):
        return None


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Says what an error is of."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        raise failed(what, error) from error
