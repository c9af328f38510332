"""The folder of a local store: made privately, and refused where somebody else could have put pickles into it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import StoreUnusable
from .aside import create_file

LAYOUT = b"pteforge store 1\n"
"""Content of the marker file `version`."""

FOLDERS = ("objects", "ledger", "leases", "runs", "tmp", "quarantine")
_IGNORED = frozenset({"lost+found"})


def prepare_root(root: Path) -> None:
    """Makes or checks the folder of a local store; raises StoreUnusable with what to do about it."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (root, *(root / name for name in FOLDERS)):
            _check_trust(folder)
        _check_layout(root)
        for name in FOLDERS:
            (root / name).mkdir(mode=0o700, exist_ok=True)  # each by itself: as a parent it would get the umask's mode
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(13, os.strerror(13), str(root))
    except OSError as error:
        raise StoreUnusable(
            f"the store {root} cannot be opened: {error.strerror or error}; "
            "give a folder that can be made and written, with --store or PTEFORGE_CACHE"
        ) from error


@contextlib.contextmanager
def writing(root: Path) -> Iterator[None]:
    """Turns the operating system's errors while writing to a store into StoreUnusable."""
    try:
        yield
    except OSError as error:
        raise StoreUnusable(
            f"the store {root} cannot be written: {error}; free some space (pteforge store gc) or use another folder"
        ) from error


def _check_trust(folder: Path) -> None:
    try:
        status = folder.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(20, os.strerror(20), str(folder))
    if status.st_uid != os.geteuid():
        raise StoreUnusable(
            f"the store folder {folder} belongs to user {status.st_uid}, not to you ({os.geteuid()}): stored programs "
            "are pickles and only read from a store of your own; choose another folder with --store or PTEFORGE_CACHE"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreUnusable(
            f"the store folder {folder} can be written by other users: stored programs are pickles and must be yours; "
            f"run: chmod -R go-w {folder}"
        )


def _check_layout(root: Path) -> None:
    marker = root / "version"
    if not marker.exists():
        strangers = sorted({entry.name for entry in root.iterdir()} - {*FOLDERS, "version", "lock"} - _IGNORED)
        if strangers:
            raise StoreUnusable(
                f"{root} is neither empty nor a pteforge store (it holds {strangers[0]}); give an empty folder"
            )
        create_file(marker, LAYOUT, root / "tmp")
    content = marker.read_bytes()
    if content != LAYOUT:
        raise StoreUnusable(
            f"the store {root} has another layout ({content[:40]!r}, this pteforge reads {LAYOUT!r}); "
            "use another folder, or delete it: everything in it can be made again"
        )
