"""Files of weights in the layout of transformers, by their names and headers: no weight is read."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from ..errors import SourceError, first_line

ENTRIES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Files that transformers looks for, in this order; it reads the first one, and the shards that an index names."""

_HEADER = 100 * 2**20  # bytes that the header of a safetensors file has at most


def files_of(entry: Path) -> tuple[Path, ...]:
    """An entry, or the shards that it names, which may be missing; raises SourceError for a wrong index."""
    if not entry.name.endswith(".index.json"):
        return (entry,)
    try:
        names = sorted({str(name) for name in json.loads(entry.read_bytes())["weight_map"].values()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SourceError(f"{entry} is no index of weights that can be read: {first_line(error)}") from error
    outside = [f"{name}, which is not in its folder" for name in names if name[0] == "/" or ".." in Path(name).parts]
    if outside or not names:
        raise SourceError(f"{entry} names {outside[0] if outside else 'no files'}; copy or download it again")
    return tuple(entry.parent / name for name in names)


def problem_of(file: Path) -> str:
    """Why a file of weights is not complete: it is missing, or has another size than its header says; else empty."""
    try:
        with file.open("rb") as opened:
            begins = opened.read(12)
        if begins == b"version http":
            return f"{file.name} is a pointer of Git LFS (run `git lfs pull`)"
        if file.suffix != ".safetensors":
            if not begins.startswith(b"\x80"):  # a pickle, as before torch 1.6, says nothing about its size
                zipfile.ZipFile(file).close()
            return ""
        header, begin = read_header(file)
        expected = begin + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        size = file.stat().st_size
    except FileNotFoundError:
        return f"{file.name} is missing"
    except (OSError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile):
        return f"{file.name} is cut, or not a file of weights"
    return f"{file.name} has {size} bytes, and its header says {expected}" if size != expected else ""


def read_header(file: Path) -> tuple[dict[str, Any], int]:
    """The tensors of a safetensors file by name, and the byte at which they begin; raises OSError or ValueError."""
    with file.open("rb") as opened:
        length = min(int.from_bytes(opened.read(8), "little"), _HEADER)
        header: dict[str, Any] = json.loads(opened.read(length))
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}, 8 + length
