"""Files that others put there: opening them never waits for a pipe, and never touches a device."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

SIDECAR_LIMIT = 64 * 2**20
"""Bytes that a JSON file next to a result has at most."""


class NotAFileError(OSError):
    """There is a link, a folder, a pipe, a socket or a device where a file should be."""


def open_file(path: str | Path) -> BufferedReader:
    """Opens a file that pteforge wrote, and so no link. Raises NotAFileError or another OSError."""
    return _open(path, os.O_NOFOLLOW, "a link, folder, pipe or device")


def open_input(path: str | Path) -> BufferedReader:
    """Opens a file that a user names, or the one that a link leads to. Raises NotAFileError or another OSError."""
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return _open(path, 0, "it is a pipe or device")


def read_sidecar(path: Path) -> bytes:
    """A JSON file that `pteforge export` writes next to a result. Raises NotAFileError or another OSError."""
    with open_input(path) as file:
        content = file.read(SIDECAR_LIMIT + 1)
    if len(content) > SIDECAR_LIMIT:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def _open(path: str | Path, flags: int, others: str) -> BufferedReader:
    look = os.lstat if flags else os.stat
    if not stat.S_ISREG(look(path).st_mode):
        raise NotAFileError(errno.EINVAL, others, str(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # it has just been replaced
            raise NotAFileError(error.errno, error.strerror, str(path)) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotAFileError(errno.EINVAL, others, str(path))
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise
