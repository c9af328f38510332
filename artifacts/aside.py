"""Temporary files and folders that can be seen to be abandoned: each is locked by its maker, while that lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def aside_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new private file in `folder`, open for writing; removed at the end unless it was renamed away."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        path = folder / f"{secrets.token_hex(16)}.part"
        with path.open("xb") as file:
            try:
                if not _lock(file.fileno()):
                    continue
                yield path, file
                return
            finally:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def aside_folder(folder: Path) -> Iterator[Path]:
    """A new private folder in `folder`, removed with all it holds at the end."""
    while True:
        path = folder / f"{secrets.token_hex(16)}.scratch"
        path.mkdir(mode=0o700, parents=True)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # taken for an abandoned one and removed, before we could lock it
            continue
        try:
            if not _lock(descriptor):
                continue
            yield path
            return
        finally:
            remove(path)
            os.close(descriptor)


def replace_file(path: Path, content: bytes, aside: Path) -> None:
    """Gives `path` new content at once; `aside` is a folder for the unfinished file, on the same file system."""
    with aside_file(aside) as (part, file):
        file.write(content)
        file.flush()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.replace(path)


def create_file(path: Path, content: bytes, aside: Path) -> bool:
    """Makes `path` with `content`, whole at once; False where it is already there."""
    with aside_file(aside) as (part, file):
        file.write(content)
        file.flush()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.link(part, path)
        except FileExistsError:
            return False
        return True


def abandoned(folder: Path) -> Iterator[Path]:
    """Entries of `folder` whose makers are dead; each is locked until the next one is asked for."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # it went meanwhile, or is none of ours
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            except BlockingIOError:
                pass
            finally:
                os.close(descriptor)


def remove(path: Path) -> None:
    """Deletes a file, or a folder with all it holds; nothing happens where it is gone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _lock(descriptor: int) -> bool:
    """Locks a new entry; False where it was taken for an abandoned one, and removed, before it was locked."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return os.fstat(descriptor).st_nlink > 0
