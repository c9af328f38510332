"""Checks that a ``.pt2`` file is what ``torch.export.save`` writes, without torch."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from ...errors import SourceError

# torch/csrc/export/pt2_archive_constants.h. All names stand in one folder, called as the file was when it was written.
_FORMAT_NAME = "archive_format"
_FORMAT = b"pt2"
_PROGRAM_NAME = "models/model.json"
# Up to torch 2.7; torch.export.load still reads it.
_FORMER_PROGRAM_NAME = "serialized_exported_program.json"


def check_program_file(path: Path) -> None:
    """Raises SourceError unless `path` is an undamaged archive that holds one exported program.

    Reads the whole file once, to check the sum of every member.
    """
    if not path.is_file():
        raise SourceError(f"there is no program file {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            problem = _archive_problem(archive)
    except OSError as error:
        raise SourceError(f"program file {path} cannot be read: {error}") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise SourceError(f"program file {path} is damaged or no .pt2 file: {error}") from error
    if problem:
        raise SourceError(f"program file {path} {problem}")


def _archive_problem(archive: zipfile.ZipFile) -> str | None:
    # The example inputs are an archive within the archive: of a file that was cut off, zipfile may find that one.
    if min((member.header_offset for member in archive.infolist()), default=0) > 0:
        return "is damaged or no .pt2 file: it was cut off, or other bytes stand before the archive"
    damaged = archive.testzip()
    if damaged is not None:
        return f"is damaged: {damaged} in it does not have the content that was written"
    names = set(archive.namelist())
    if _FORMER_PROGRAM_NAME in names:
        return None
    root = next(iter(names), "").partition("/")[0]
    format_name = f"{root}/{_FORMAT_NAME}"
    if format_name not in names or archive.read(format_name) != _FORMAT:
        return "is a zip archive, but not one that torch.export.save writes" + _other_kind(names, root)
    if f"{root}/{_PROGRAM_NAME}" not in names:
        return "holds no exported program called 'model', which is what torch.export.save writes"
    return None


def _other_kind(names: set[str], root: str) -> str:
    if f"{root}/data.pkl" not in names:
        return ""
    if f"{root}/constants.pkl" in names:
        return "; it is a TorchScript file (torch.jit.save)"
    return "; it is a pickle of torch.save, perhaps a state dict: name a builder that loads it"
