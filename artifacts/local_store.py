"""The content-addressed store on a local disk: what workers use, and the read-through copy of remote stores."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import ObjectDamaged, ObjectMissing, StoreError, StoreUnusable
from .aside import abandoned, aside_file, aside_folder, remove
from .digest import Digest, digest_bytes
from .local_root import prepare_root, writing
from .manifest import Manifest
from .object_folder import ObjectFolder
from .ref import ArtifactRef, BlobRef

_CHUNK = 1 << 20


class LocalStore:
    """Objects on a local disk, and the artifacts they make; safe under concurrent threads and processes.

    An object that is read-only, has its right size and the modification time `VERIFIED_MTIME_NS` was verified when it
    came here and is used as it is. Every other one is hashed again before use: damaged ones move to
    ``<root>/quarantine`` and are never used.

    Attributes:
        root: the store's folder; a worker process makes its own `LocalStore(root)`.
        objects: the files themselves, for upkeep.
    """

    def __init__(self, root: Path) -> None:
        """Uses a root that `open` has checked: nothing is read or written here."""
        self.root = root
        self.objects = ObjectFolder(root)

    @classmethod
    def open(cls, root: Path) -> LocalStore:
        """Makes or checks the store at `root`; raises StoreUnusable where it cannot be used or trusted."""
        prepare_root(root)
        return cls(root)

    def put_bytes(self, content: bytes | bytearray | memoryview) -> BlobRef:
        """Publishes bytes; writes nothing where they are already there."""
        blob = BlobRef(digest_bytes(content), memoryview(content).nbytes)
        if not self.objects.refresh(blob):
            with writing(self.root), aside_file(self.root / "tmp") as (path, file):
                file.write(content)
                file.flush()
                self.objects.install(path, file.fileno(), blob)
        return blob

    def put_file(self, path: Path, *, move: bool = False) -> BlobRef:
        """Publishes a file's content.

        Args:
            path: a file that nobody writes to meanwhile.
            move: give the file away; where it is on the store's file system its bytes are not copied.
        """
        if move and self._can_take(path):
            with path.open("rb") as file, writing(self.root):
                blob = BlobRef(Digest(hashlib.file_digest(file, "sha256").hexdigest()), os.fstat(file.fileno()).st_size)
                if not self.objects.refresh(blob):
                    self.objects.install(path, file.fileno(), blob)
        else:
            with path.open("rb") as file, self.writer() as writer:
                while chunk := file.read(_CHUNK):
                    writer.write(chunk)
            blob = writer.ref
        if move:
            path.unlink(missing_ok=True)
        return blob

    @contextlib.contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        """Publishes what is written within the ``with`` block, or nothing where the block raises."""
        with contextlib.ExitStack() as stack:
            with writing(self.root):
                path, file = stack.enter_context(aside_file(self.root / "tmp"))
            writer = BlobWriter(file, self.root)
            yield writer
            with writing(self.root):
                file.flush()
                blob = writer.blob_so_far()
                if not self.objects.refresh(blob):
                    self.objects.install(path, file.fileno(), blob)
            writer.ref = blob

    def path(self, blob: BlobRef) -> Path:
        """A verified read-only file; raises ObjectMissing or ObjectDamaged."""
        return self.objects.verified(blob)

    def read(self, blob: BlobRef) -> bytes:
        """An object's bytes; raises ObjectMissing or ObjectDamaged."""
        with self.objects.open(blob) as file:
            return file.read()

    def contains(self, blob: BlobRef) -> bool:
        """Whether the object is there and good; a damaged one is moved aside."""
        try:
            self.path(blob)
        except (ObjectMissing, ObjectDamaged):
            return False
        return True

    def put_artifact(self, kind: str, content: bytes) -> ArtifactRef:
        """Publishes an artifact that is one object; its identity is its digest."""
        root = self.put_bytes(content)
        return ArtifactRef(kind, root, root.digest)

    def put_manifest(self, manifest: Manifest, identity: Digest | None = None) -> ArtifactRef:
        """Publishes an artifact made of objects that are here already; raises ObjectMissing where one is not.

        Args:
            manifest: the objects, and how they make the artifact.
            identity: the canonical digest of kinds that have one; the manifest's own by default.
        """
        for blob in manifest.blobs:
            self.path(blob)
        root = self.put_bytes(manifest.encode())
        return ArtifactRef(manifest.kind, root, identity or root.digest, composite=True)

    def read_artifact(self, ref: ArtifactRef) -> bytes:
        """Content of an artifact that is one object; raises ObjectMissing, ObjectDamaged, or StoreError for others."""
        if ref.composite:
            raise StoreError(f"the {ref.kind} artifact {ref.root.digest} is made of several objects; read its manifest")
        return self.read(ref.root)

    def manifest(self, ref: ArtifactRef) -> Manifest:
        """Manifest of a composite artifact; raises ObjectMissing, ObjectDamaged, or StoreError where there is none."""
        try:
            manifest = Manifest.decode(self.read(ref.root))
        except ValueError as error:
            raise StoreError(f"object {ref.root.digest} in {self.root} is not the manifest of a {ref.kind}") from error
        if not ref.composite or manifest.kind != ref.kind:
            raise StoreError(
                f"object {ref.root.digest} in {self.root} is the manifest of another artifact: {manifest.kind}"
            )
        return manifest

    def objects_of(self, ref: ArtifactRef) -> tuple[BlobRef, ...]:
        """Every object of an artifact, the root first; raises ObjectMissing or ObjectDamaged for its manifest."""
        return (ref.root, *self.manifest(ref).blobs) if ref.composite else (ref.root,)

    def has(self, ref: ArtifactRef) -> bool:
        """Whether every object of an artifact is there and good; damaged ones are moved aside."""
        try:
            return all(self.contains(blob) for blob in self.objects_of(ref))
        except StoreUnusable:
            raise
        except StoreError:
            return False

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private folder on the store's file system, removed at the end (by gc where this process was killed)."""
        with contextlib.ExitStack() as stack:
            with writing(self.root):
                path = stack.enter_context(aside_folder(self.root / "tmp"))
            yield path

    def clock(self) -> float:
        """Now, seconds since the epoch, as the file system sees it: it may lag behind the system's clock."""
        with writing(self.root), aside_file(self.root / "tmp") as (_, file):
            return os.fstat(file.fileno()).st_ctime

    def sweep_leftovers(self, since: float, *, dry_run: bool) -> int:
        """Deletes unfinished files of dead processes and objects moved aside before `since`; says how many."""
        count = 0
        for path in itertools.chain(abandoned(self.root / "tmp"), self.objects.quarantined(since)):
            count += 1
            if not dry_run:
                remove(path)
        return count

    def _can_take(self, path: Path) -> bool:
        status = path.lstat()
        return (
            stat.S_ISREG(status.st_mode)
            and status.st_nlink == 1
            and status.st_uid == os.geteuid()
            and status.st_dev == self.root.stat().st_dev
        )


class BlobWriter:
    """Takes an object's bytes piece by piece; made by `LocalStore.writer`.

    Attributes:
        ref: the published object, once the writer's ``with`` block has ended.
    """

    ref: BlobRef

    def __init__(self, file: BinaryIO, root: Path) -> None:
        """Writes to `file`, which lies aside in the store at `root`."""
        self._file = file
        self._root = root
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, content: bytes | bytearray | memoryview) -> int:
        """Appends bytes; returns how many. Raises StoreUnusable where the disk does not take them."""
        with writing(self._root):
            self._file.write(content)
        self._hash.update(content)
        size = memoryview(content).nbytes
        self._size += size
        return size

    def blob_so_far(self) -> BlobRef:
        """What was written until now."""
        return BlobRef(Digest(self._hash.hexdigest()), self._size)
