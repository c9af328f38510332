"""What evaluators share: samples from a dataset or from files, and the model's answers to them."""

from __future__ import annotations

import itertools
import pkgutil
import wave
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..configs.sources import names_model
from ..errors import SourceError

Predict = Callable[..., Any]
"""``predict(*inputs, method="forward")``; see `tasks.verify.scoring`."""

Read = Callable[[Any], Any]
"""Makes a model's inputs of a path, or of text."""


def resolve(name: str) -> Any:
    """Imports ``package.module:name``; raises SourceError if it does not exist."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SourceError(f"the evaluator's argument {name!r} cannot be imported: {error}") from error


def samples_of(
    dataset: str | None, files: Callable[[], Iterator[Any]] | None, most: int | None, parts: int
) -> Iterator[tuple[Any, ...]]:
    """Yields up to `most` samples of `parts` values: a dataset's, by name, or those that `files` makes.

    Raises SourceError if neither or both are given, there is no sample, or one has another number of values.
    """
    if (dataset is None) == (files is None):
        raise SourceError("the evaluator takes either `dataset` or files, and needs one of them")
    if files is not None:
        found: Any = files()
    else:
        found = resolve(str(dataset))
        found = found() if callable(found) else found
    count = 0
    for sample in itertools.islice(found, most):
        if not isinstance(sample, tuple | list) or len(sample) != parts:
            length = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
            raise SourceError(
                f"sample {count} of {dataset or 'the files'} is {type(sample).__name__}{length}; "
                f"the evaluator takes tuples of {parts} values"
            )
        count += 1
        yield tuple(sample)
    if not count:
        raise SourceError(f"{dataset or 'the folder or file'} gives no sample to score")


def answer(predict: Predict, inputs: Any, method: str, output: int) -> torch.Tensor:
    """One of the model's outputs for inputs: a tensor, a tuple, or a mapping's values. SourceError if there is none."""
    if isinstance(inputs, Mapping):
        inputs = tuple(inputs.values())
    outputs = predict(*(inputs if isinstance(inputs, tuple | list) else (inputs,)), method=method)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    if output >= len(outputs):
        raise SourceError(f"the model has {len(outputs)} outputs, and the evaluator was given output: {output}")
    tensor: torch.Tensor = outputs[output]
    return tensor


def reader(name: str | None, length: int | None = None) -> Read:
    """What makes inputs of a file or a text: the user's function, a model's preprocessing, or `read_tensor`.

    Args:
        name: ``package.module:name``, the name of a model such as ``hf:org/name`` or ``timm:NAME``, or None.
        length: tokens of a text, where that model has a tokenizer.
    """
    if name is None:
        return read_tensor
    if names_model(name):
        from .preprocessing import preprocessing_of  # noqa: PLC0415 - imports what most evaluators do without

        return preprocessing_of(name, length)
    found: Read = resolve(name)
    return found


def read_tensor(path: Path) -> torch.Tensor:
    """Reads the tensor in a ``.npy`` or ``.pt`` file, or 16-bit PCM from a mono ``.wav`` as float32 [1, n], -1 to 1.

    Raises SourceError if the file is of another kind, or damaged.
    """
    try:
        match path.suffix:
            case ".npy":
                return torch.from_numpy(np.load(path, allow_pickle=False))
            case ".pt":
                tensor: torch.Tensor = torch.load(path, weights_only=True)
                return tensor
            case ".wav":
                return _read_wave(path)
    except (OSError, ValueError, EOFError, RuntimeError, wave.Error) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    raise SourceError(
        f"{path} is not a .npy, .pt or .wav file; name a function that makes the model's inputs of a path: "
        "`read: package.module:name`, or a model whose preprocessing does: `read: hf:org/name`"
    )


def _read_wave(path: Path) -> torch.Tensor:
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2 or file.getnchannels() != 1:
            raise wave.Error("it is not mono with 16 bits")
        values = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    return torch.from_numpy(values.astype(np.float32) / 2**15).unsqueeze(0)


def listed(folder: str | Path) -> list[Path]:
    """What is in a folder, sorted by name, without hidden files; raises SourceError if there is no such folder."""
    if not Path(folder).is_dir():
        raise SourceError(f"there is no folder {folder}")
    return sorted(path for path in Path(folder).iterdir() if not path.name.startswith("."))


def rows(file: str | Path, columns: int) -> Iterator[list[str]]:
    """Lines of a UTF-8 file, split at tabs, without empty ones; SourceError without a file or for other columns."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise SourceError(f"{file} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != columns:
            raise SourceError(f"{file}, line {number}: {len(cells)} columns, separated by tabs; {columns} are needed")
        yield cells
