"""Files of weights in the layout of transformers, by their names and headers: no weight is read."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

ENTRIES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Files that transformers looks for, in this order; it reads the first one, and the shards that an index names."""

_HEADER = 100 * 2**20  # bytes that the header of a safetensors file has at most


def files_of(entry: Path) -> tuple[Path, ...]:
    """The files of weights that an entry stands for, whether they exist or not: itself, or the shards of an index.

    Raises ValueError if an index cannot be read, names no files, or one that is not in its folder.
    """
    if not entry.name.endswith(".index.json"):
        return (entry,)
    try:
        names = sorted({str(name) for name in json.loads(entry.read_bytes())["weight_map"].values()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{entry} is not an index of weights: {type(error).__name__}: {error}") from error
    if not names:
        raise ValueError(f"{entry} names no files")
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"{entry} names {name}, which is not in its folder")
    return tuple(entry.parent / name for name in names)


def problem_of(file: Path) -> str:
    """Why a file of weights is not complete: it is missing, or has another size than its header says; else empty."""
    try:
        size = file.stat().st_size
        if file.suffix != ".safetensors":
            with file.open("rb") as opened:
                begins = opened.read(4)
            cut = not size or (begins == b"PK\3\4" and not zipfile.is_zipfile(file))  # others are pickles without sizes
            return f"{file.name} has {size} bytes, and its end is missing" if cut else ""
        header, begin = read_header(file)
        expected = begin + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except FileNotFoundError:
        return f"{file.name} is missing"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return f"{file.name} has no header that can be read"
    return f"{file.name} has {size} bytes, and its header says {expected}" if size != expected else ""


def read_header(file: Path) -> tuple[dict[str, Any], int]:
    """The tensors of a safetensors file by name, and where their values begin, in bytes.

    Raises OSError, or ValueError if the file has no such header.
    """
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > min(_HEADER, os.fstat(opened.fileno()).st_size):
            raise ValueError(f"{file} has no header of safetensors")
        header: dict[str, Any] = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length
