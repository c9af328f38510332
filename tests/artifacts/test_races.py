"""What must hold when several threads use one local store in the least convenient way."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pteforge.artifacts.aside import abandoned, aside_file, aside_folder, remove
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.ref import BlobRef
from pteforge.errors import ObjectDamaged, ObjectMissing


def _beside(background: Callable[[], None], *work: Callable[[], None]) -> None:
    """Repeats `background` in one thread until each of `work` has ended in its own."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            background()

    with ThreadPoolExecutor(1 + len(work)) as pool:
        repeating = pool.submit(repeat)
        try:
            for working in [pool.submit(each) for each in work]:
                working.result()
        finally:
            ended.set()
        repeating.result()


def test_new_entries_are_never_taken_for_abandoned(tmp_path: Path):
    """Sweeping beside makers of files and folders takes none of theirs, not even in the moment they are made."""
    folder = tmp_path / "tmp"

    def sweep() -> None:
        for path in abandoned(folder):
            remove(path)

    def make_files() -> None:
        for number in range(300):
            with aside_file(folder) as (path, file):
                file.write(b"x")
                path.rename(tmp_path / f"kept-{number}")

    def make_folders() -> None:
        for _ in range(300):
            with aside_folder(folder) as path:
                (path / "file").write_bytes(b"x")
                assert path.is_dir()

    _beside(sweep, make_files, make_folders)
    assert len(list(tmp_path.glob("kept-*"))) == 300
    assert list(folder.iterdir()) == []


def test_damage_is_never_read_while_it_is_repaired(tmp_path: Path):
    """Readers and publishers beside somebody who keeps damaging the object get its bytes or an error, nothing else."""
    store = LocalStore.open(tmp_path / "store")
    content = b"weights" * 100
    blob = BlobRef(digest_bytes(content), len(content))
    path = store.root / "objects" / blob.digest[:2] / blob.digest

    def damage() -> None:
        damaged = tmp_path / "damaged"
        damaged.write_bytes(os.urandom(len(content)))
        if path.exists():
            damaged.replace(path)

    def read() -> None:
        for _ in range(500):
            with contextlib.suppress(ObjectDamaged, ObjectMissing):
                assert store.read(blob) == content

    def publish() -> None:
        for _ in range(500):
            assert store.put_bytes(content) == blob

    _beside(damage, read, publish)
    assert store.put_bytes(content) == blob
    assert store.read(blob) == content


def test_discarding_beside_publishers_loses_nothing(tmp_path: Path):
    """An object that was published again after the cutoff survives its collection."""
    store = LocalStore.open(tmp_path / "store")
    blob = store.put_bytes(b"weights")

    def discard() -> None:
        store.objects.discard(blob.digest, store.clock() - 0.5)

    def publish() -> None:
        for _ in range(500):
            store.put_bytes(b"weights")
            assert store.read(blob) == b"weights"

    _beside(discard, publish, publish)
