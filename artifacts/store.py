"""The seam of storage: where artifacts, the ledger, leases and run records live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from .cache_folder import cache_folder
from .digest import Digest, digest_bytes
from .files import LocalFiles
from .lease import Leases, LocalLeases
from .ledger import Ledger
from .local_store import LocalStore
from .object_folder import StoredObject
from .ref import ArtifactRef, BlobRef
from .runs import Runs
from .signing import Seal


class Store(ABC):
    """Artifacts by ref, and what is known about them; safe to use from several threads.

    Stages read and write `local`. Around them the caller fetches inputs and publishes outputs, and commits to the
    ledger only what was published.

    Attributes:
        url: where it is, without credentials.
        local: the objects on this machine's disk.
        ledger: finished stages.
        leases: who computes which stage now.
        runs: what runs did.
    """

    url: str
    local: LocalStore
    ledger: Ledger
    leases: Leases
    runs: Runs

    @abstractmethod
    def publish(self, ref: ArtifactRef) -> None:
        """Makes every object of a local artifact durable; raises ObjectMissing, ObjectDamaged or StoreUnusable."""

    @abstractmethod
    def fetch(self, ref: ArtifactRef) -> None:
        """Makes every object of an artifact available in `local`, verified.

        Raises:
            ObjectMissing: an object is nowhere.
            ObjectDamaged: an object was damaged; it has been moved aside.
            StoreUnusable: the store cannot be reached.
        """

    @abstractmethod
    def has(self, ref: ArtifactRef) -> bool:
        """Whether every object of an artifact is there, without reading more than its manifest."""

    @abstractmethod
    def objects_of(self, ref: ArtifactRef) -> tuple[BlobRef, ...]:
        """Every object of an artifact, the root first; raises ObjectMissing or ObjectDamaged for its manifest."""

    @abstractmethod
    def objects(self) -> Iterator[StoredObject]:
        """Lists all objects, in no order."""

    @abstractmethod
    def check(self, blob: BlobRef) -> bool:
        """Reads an object again and says whether it is good; a damaged one is moved aside."""

    @abstractmethod
    def discard(self, digest: Digest, unless_since: float) -> bool:
        """Deletes an object unless it was published since then, in seconds since the epoch; says whether it did."""

    @abstractmethod
    def clock(self) -> float:
        """Now, seconds since the epoch, as a file that is written now would show it: other clocks run differently."""

    @abstractmethod
    def sweep_leftovers(self, since: float, *, dry_run: bool) -> int:
        """Deletes unfinished files of dead processes and objects moved aside before `since`; says how many."""

    def close(self) -> None:  # noqa: B027 - most stores have nothing to let go of
        """Lets go of connections."""

    def __enter__(self) -> Self:
        """Closes the store at the end of the ``with`` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LocalOnlyStore(Store):
    """A store in a folder of this machine, trusted because it is the user's own."""

    def __init__(self, root: Path) -> None:
        """Opens the store at `root`; raises StoreUnusable."""
        self.local = LocalStore.open(root)
        self.url = str(root)
        files = LocalFiles(root)
        self.ledger = Ledger(files, Seal(None))
        self.leases = LocalLeases(root / "leases")
        self.runs = Runs(files)

    def publish(self, ref: ArtifactRef) -> None:
        """Checks that every object is there: local objects are durable already."""
        self.fetch(ref)

    def fetch(self, ref: ArtifactRef) -> None:
        """Verifies every object that is not known to be good."""
        for blob in self.local.objects_of(ref):
            self.local.path(blob)

    def has(self, ref: ArtifactRef) -> bool:
        """Whether every object is there, by its size and mark."""
        return self.local.has(ref)

    def objects_of(self, ref: ArtifactRef) -> tuple[BlobRef, ...]:
        """Every object of an artifact, the root first."""
        return self.local.objects_of(ref)

    def objects(self) -> Iterator[StoredObject]:
        """Lists all objects, in no order."""
        return iter(self.local.objects)

    def check(self, blob: BlobRef) -> bool:
        """Hashes an object."""
        self.local.objects.distrust(blob.digest)
        return self.local.contains(blob)

    def discard(self, digest: Digest, unless_since: float) -> bool:
        """Deletes an object unless it was published since then; says whether it did."""
        return self.local.objects.discard(digest, unless_since)

    def clock(self) -> float:
        """Now, as the file system sees it."""
        return self.local.clock()

    def sweep_leftovers(self, since: float, *, dry_run: bool) -> int:
        """Deletes unfinished files of dead processes and objects moved aside before `since`; says how many."""
        return self.local.sweep_leftovers(since, dry_run=dry_run)


def open_store(url: str | None = None, *, cache: Path | None = None) -> Store:
    """Opens the store at a URL.

    Args:
        url: None for the default (``<cache>/store``), a path or ``file://`` URL, or any other URL that fsspec
            understands, such as ``s3://bucket/prefix``.
        cache: folder for local copies; ``$PTEFORGE_CACHE``, ``$XDG_CACHE_HOME/pteforge`` or ``~/.cache/pteforge`` by
            default.

    Raises:
        StoreUnusable: it cannot be opened, or must not be trusted; the message says what to do.
    """
    cache = cache or cache_folder()
    if url is None:
        return LocalOnlyStore(cache / "store")
    if "://" not in url:
        return LocalOnlyStore(Path(url).expanduser().absolute())
    if (parts := urlsplit(url)).scheme in {"file", "local"}:
        return LocalOnlyStore(Path(unquote(parts.netloc + parts.path)).absolute())
    from .remote_store import RemoteStore  # noqa: PLC0415 - fsspec and tenacity are only needed here

    return RemoteStore(url, cache / "remotes" / digest_bytes(url.encode())[:16])
