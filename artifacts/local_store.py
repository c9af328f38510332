"""The content-addressed store on a local disk. Workers use it directly, and remote stores are read through it."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ..errors import StoreError, StoreUnusable
from .digest import Digest, digest_bytes, digest_file
from .files import abandoned, create_file, open_file, remove, staging_file, staging_folder, write_errors
from .object_folder import ObjectFolder
from .ref import ArtifactManifest, ArtifactRef, BlobRef

LAYOUT = b"pteforge store 1\n"
"""Content of the marker file `version`."""

_FOLDERS = ("objects", "ledger", "leases", "runs", "tmp", "quarantine", "damaged")
_IGNORED = frozenset({"lost+found"})


class LocalStore:
    """Objects and artifacts on a local disk; safe under concurrent threads and processes.

    `path` and `read` digest what they give: bytes that rot keep their file's size and times. Whoever only
    asks whether an object is there trusts its mark: it is read-only, of the right size, and has the modification time
    `VERIFIED_MTIME_NS`. Damaged objects move to ``<root>/quarantine`` and are never used.

    The digest is the object's own SHA-256. A faster checksum would have to be stored next to it, and be missing from
    existing stores; `docs/operations.md` says what SHA-256 costs.

    Attributes:
        root: the store's folder; the body of a stage has a `LocalStore(root, once=True)` of its own.
        objects: the objects' files, for maintenance.
    """

    def __init__(self, root: Path, *, once: bool = False) -> None:
        """Uses a root that `open` has checked, without reading or writing anything.

        With `once`, `path` digests each object the first time only: for the body of one stage.
        """
        self.root = root
        self.objects = ObjectFolder(root, once=once)
        # Each is needed several times in a row: by whoever looks for an artifact, fetches it, and reads it.
        self._manifests = lru_cache(maxsize=512)(lambda root: ArtifactManifest.decode(self.read(root)))

    @classmethod
    def open(cls, root: Path) -> LocalStore:
        """Creates or checks the store at `root`; raises StoreUnusable if it cannot be used or trusted.

        A store that cannot be written can be used by whoever only reads.
        """
        _prepare_root(root)
        return cls(root)

    def put_bytes(self, content: bytes | bytearray | memoryview) -> BlobRef:
        """Publishes bytes; writes nothing if they are already in the store."""
        blob = BlobRef(digest_bytes(content), memoryview(content).nbytes)
        if not self.objects.refresh(blob):
            with write_errors(self.root), staging_file(self.root / "tmp") as (path, file):
                file.write(content)
                file.flush()
                self.objects.install(path, file.fileno(), blob)
        return blob

    def put_scratch(self, path: Path) -> BlobRef:
        """Publishes a file of a `scratch` folder by renaming it, without copying its bytes."""
        with write_errors(self.root), path.open("rb") as file:
            blob = BlobRef(digest_file(path), os.fstat(file.fileno()).st_size)
            if not self.objects.refresh(blob):
                self.objects.install(path, file.fileno(), blob)
        return blob

    def path(self, blob: BlobRef) -> Path:
        """A file to map or to read later, whose bytes were just digested; raises ObjectMissing or ObjectDamaged."""
        return self.objects.digested(blob)

    def read(self, blob: BlobRef) -> bytes:
        return self.objects.read(blob)

    def contains(self, blob: BlobRef) -> bool:
        return self.objects.holds(blob)

    def put_artifact(self, kind: str, content: bytes) -> ArtifactRef:
        root = self.put_bytes(content)
        return ArtifactRef(kind, root, root.digest)

    def put_manifest(self, manifest: ArtifactManifest, identity: Digest | None = None) -> ArtifactRef:
        """Publishes an artifact made of objects that are already in the store; raises ObjectMissing if one is not.

        The identity is the canonical digest of kinds that have one, and the manifest's digest by default.
        """
        for blob in manifest.blobs:
            self.objects.require(blob)
        root = self.put_bytes(manifest.encode())
        return ArtifactRef(manifest.kind, root, identity or root.digest, composite=True)

    def read_artifact(self, ref: ArtifactRef) -> bytes:
        """Content of an artifact that is one object; raises ObjectMissing, ObjectDamaged, or StoreError."""
        if ref.composite:
            raise StoreError(f"the {ref.kind} artifact {ref.root.digest} is made of several objects; read its manifest")
        return self.read(ref.root)

    def manifest(self, ref: ArtifactRef) -> ArtifactManifest:
        """Manifest of a composite artifact; raises ObjectMissing, ObjectDamaged, or StoreError if it has none."""
        try:
            self.objects.require(ref.root)
            manifest = self._manifests(ref.root)
        except ValueError as error:
            raise StoreError(f"object {ref.root.digest} in {self.root} is not the manifest of a {ref.kind}") from error
        if not ref.composite or manifest.kind != ref.kind:
            raise StoreError(
                f"object {ref.root.digest} in {self.root} is the manifest of another artifact: {manifest.kind}"
            )
        return manifest

    def objects_of(self, ref: ArtifactRef) -> tuple[BlobRef, ...]:
        return (ref.root, *self.manifest(ref).blobs) if ref.composite else (ref.root,)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private folder on the store's file system, removed at the end (by gc if this process is killed)."""
        with contextlib.ExitStack() as stack:
            with write_errors(self.root):
                path = stack.enter_context(staging_folder(self.root / "tmp"))
            yield path

    def sweep_leftovers(self, since: float, *, dry_run: bool) -> int:
        count = 0
        dead = (abandoned(self.root / name) for name in ("tmp", "leases"))  # a lease is locked as a staging file is
        for path in itertools.chain(*dead, self.objects.quarantined(since)):
            count += 1
            if not dry_run:
                with write_errors(self.root):
                    remove(path)
        return count


def _prepare_root(root: Path) -> None:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (root, *(root / name for name in _FOLDERS)):
            _check_trust(folder)
        if os.access(root, os.W_OK | os.X_OK) or not (root / "version").exists():
            _check_layout(root)
            for name in _FOLDERS:
                (root / name).mkdir(mode=0o700, exist_ok=True)  # one by one: a parent would get the umask's mode
        else:
            _check_version(root)
    except OSError as error:
        raise StoreUnusable(
            f"the store {root} cannot be opened: {error.strerror or error}; "
            "choose a folder that can be created and written, with --store or PTEFORGE_CACHE"
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
    if not os.path.lexists(marker):
        unexpected = sorted({entry.name for entry in root.iterdir()} - {*_FOLDERS, "version", "lock"} - _IGNORED)
        if unexpected:
            raise StoreUnusable(
                f"{root} is neither empty nor a pteforge store (it holds {unexpected[0]}); give an empty folder"
            )
        create_file(marker, LAYOUT, root / "tmp")
    _check_version(root)


def _check_version(root: Path) -> None:
    with open_file(root / "version") as file:
        content = file.read(len(LAYOUT) + 40)
    if content != LAYOUT:
        raise StoreUnusable(
            f"the store {root} has another layout ({content[:40]!r}, this pteforge reads {LAYOUT!r}); "
            "use another folder, or delete it: everything in it can be computed again"
        )
