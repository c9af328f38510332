"""Datasets that are files, for `calibration`: ``{dataset: pteforge.evaluators:files, kwargs: {folder: photos}}``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import SourceError
from .samples import listed, reader, rows


class Samples(Sequence[Any]):
    """Inputs of a model, each made when it is asked for."""

    def __init__(self, items: Sequence[Any], make: Callable[[Any], Any]) -> None:
        self._items = items
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        inputs = self._make(self._items[index])
        return tuple(inputs.values()) if isinstance(inputs, dict) else inputs


def files(folder: str, *, read: str | None = None) -> Samples:
    """The files in a folder and in those below it, sorted by path, without hidden ones.

    Args:
        folder: path of the folder.
        read: what makes inputs of a path: see `samples.reader`.

    Raises:
        SourceError: there is no such folder, or no file in it.
    """
    found = list(_below(Path(folder)))
    if not found:
        raise SourceError(f"{folder} has no files")
    return Samples(found, reader(read))


def _below(folder: Path) -> list[Path]:
    return [path for each in listed(folder) for path in (_below(each) if each.is_dir() else [each])]


def lines(file: str, *, read: str, length: int | None = None) -> Samples:
    """The lines of a UTF-8 file that are not empty.

    Args:
        file: path of the file.
        read: what makes inputs of a text: see `samples.reader`.
        length: tokens of a text, where the tokenizer of a model by name reads it: longer ones are cut, others padded.

    Raises:
        SourceError: the file cannot be read, or all of its lines are empty.
    """
    texts = [text for (text,) in rows(file, 1)]
    if not texts:
        raise SourceError(f"{file} has no text")
    return Samples(texts, reader(read, length))


def hub(
    name: str,
    *,
    column: str,
    read: str,
    split: str = "train",
    subset: str | None = None,
    revision: str | None = None,
    length: int | None = None,
) -> Samples:
    """A column of a dataset that Hugging Face's `datasets` loads.

    Args:
        name: of the dataset, or path of one.
        column: images, texts, or sounds as `datasets` decodes them.
        read: what makes inputs of a value of the column: see `samples.reader`.
        split: part of the dataset.
        subset: of a dataset that has several.
        revision: branch, tag or commit.
        length: tokens of a text, as for `lines`.

    Raises:
        SourceError: `datasets` is not installed, or the dataset lacks the column.
    """
    try:
        from datasets import load_dataset  # noqa: PLC0415 - optional
    except ImportError as error:
        raise SourceError(
            "pteforge.evaluators:hub needs Hugging Face's datasets: pip install 'pteforge[data]'"
        ) from error
    rows_of_split = load_dataset(name, subset, split=split, revision=revision)
    if column not in rows_of_split.column_names:
        raise SourceError(f"{name} has no column {column!r}; it has {', '.join(rows_of_split.column_names)}")
    return Samples(rows_of_split.select_columns(column), _of_column(column, reader(read, length)))


def _of_column(column: str, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda row: make(row[column])
