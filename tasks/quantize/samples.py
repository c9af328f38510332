"""Samples for calibration: from a dataset into the store, one at a time."""

from __future__ import annotations

import pkgutil
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.export import ExportedProgram

from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef
from ...errors import SourceError, StoreError
from ..engine.stage import Progressed, no_progress
from ..programs.values import count_values, save_values
from ..upstream.compat import pytree
from ..usercode.inputs import check_fits, own_tensors, with_progress
from ..usercode.model_source import user_code_error


def save_samples(
    what: str,
    samples: Iterable[Sequence[Any]],
    store: LocalStore,
    *,
    total: int | None = None,
    progressed: Progressed = no_progress,
) -> ArtifactRef:
    """Stores samples, one in memory at a time; raises SourceError if there is none, or one cannot be an input."""
    try:
        ref = save_values(with_progress(samples, total, progressed), kind="samples", store=store)
    except StoreError as error:
        raise SourceError(f"{what}: a sample cannot be an input: {error}") from error
    if not count_values(ref, store):
        raise SourceError(f"{what} gives no sample")
    return ref


def flat_samples(what: str, dataset: Iterable[Any]) -> Iterator[list[Any]]:
    """Flat inputs of a dataset's samples, each of which is a tuple of positional inputs or the only input.

    Raises SourceError if the dataset raises; the message begins with `what`.
    """
    with _source_errors(what):
        for sample in dataset:
            yield own_tensors(pytree.tree_leaves(sample if isinstance(sample, tuple) else (sample,)))


def checked_samples(program: ExportedProgram, samples: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """The samples; raises SourceError for one that the program cannot be called with."""
    for number, sample in enumerate(samples):
        check_fits(program, sample, f"calibration sample {number}")
        yield sample


def load_dataset(what: str, name: str, kwargs: Mapping[str, Any]) -> Iterable[Any]:
    """The dataset that a name stands for, called with `kwargs` where it is callable; SourceError where it raises."""
    with _source_errors(what):
        named: Any = pkgutil.resolve_name(name)
        dataset: Iterable[Any] = named(**kwargs) if callable(named) else named
        return dataset


def drawn(what: str, dataset: Any, most: int, seed: int) -> Sequence[Any]:
    """Samples at positions that are drawn without repeats, each read when it is needed.

    Raises SourceError for a dataset without a length or positions.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise SourceError(
            f"{what} is {type(dataset).__name__}, which has no length: `shuffle` draws from all samples; return a "
            "list, or a dataset with `__len__` and `__getitem__`, or leave `shuffle` out"
        )
    generator = random.Random(seed)  # noqa: S311 - no secret
    return _Drawn(dataset, generator.sample(range(len(dataset)), min(most, len(dataset))))


class _Drawn(Sequence[Any]):
    def __init__(self, dataset: Any, positions: Sequence[int]) -> None:
        self._dataset = dataset
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[self._positions[index]]


def length_of(dataset: Any, most: int) -> int | None:
    """How many samples there will be; None for a dataset without a length."""
    try:
        return min(len(dataset), most)
    except (TypeError, NotImplementedError):
        return None


@contextmanager
def _source_errors(what: str) -> Iterator[None]:
    """Turns errors into SourceErrors whose messages begin with `what`."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        raise user_code_error(what, error) from error
