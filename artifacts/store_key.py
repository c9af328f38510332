"""The signing key of a shared store: recognised by an id that the store keeps, and changed.

The file ``key`` has the line ``pteforge key 1 <id>``, and the id of the new key behind it while the key is changed.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..errors import StoreUnusable
from .files import NamedFiles
from .ledger import Ledger
from .records import KEY_VARIABLE, NEW_KEY_VARIABLE, Seal, SealError, key_id
from .remote_files import RemoteFiles
from .runs import Runs

_FILE = "key"
_ID = re.compile(rb"pteforge key 1 ([0-9a-f]{32})(?: ([0-9a-f]{32}))?\n")
_LIMIT = 1024  # bytes
_PARALLEL = 8


def check_key(files: RemoteFiles, key: str) -> None:
    """Raises StoreUnusable, with what to do, unless a store is signed with this key. A new store is from now on."""
    own, known = key_id(key), _read(files)
    if known is None:
        with contextlib.suppress(StoreUnusable):  # it may be read-only
            if not files.create(_FILE, _line(own)) and _read(files) is None:
                files.write(_FILE, _line(own))  # what was there is no id
        known = _read(files) or (own,)
    if known != (own,):
        raise _does_not_fit(files.url, own, f"the key {known[0]}" if len(known) == 1 else "a key that is being changed")


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """The result of `rekey`.

    Attributes:
        records: that are signed with the new key now.
        dropped: records that the old key had not signed, or that can be made again from others.
    """

    records: int
    dropped: int


def rekey(files: RemoteFiles, old: str, new: str) -> Rekeyed:
    """Signs a store's records with another key. If it is interrupted, call it again: until then, no key fits.

    Raises:
        StoreUnusable: the store is not signed with the old key, or is being given yet another one.
    """
    if files.read("version", _LIMIT) is None:
        raise StoreUnusable(f"there is no store at {files.url}")
    ids, known = (key_id(old), key_id(new)), _read(files)
    if ids[0] == ids[1]:
        raise StoreUnusable(f"{NEW_KEY_VARIABLE} is the key that the store {files.url} has; set it to another one")
    if known not in (ids, (ids[1],)):
        check_key(files, old)
    files.write(_FILE, _line(*ids))
    before, after = Seal(old), Seal(new)
    purposes = {**Ledger(files, before).purposes(), **Runs(files, before).purposes()}

    def sign_again(name: str) -> bool:
        content = files.read(name) or b""
        for seal in (after, before):
            with contextlib.suppress(SealError):
                opened = seal.open(purposes[name], content)
                if seal is before:
                    files.write(name, after.close(purposes[name], opened))
                return True
        files.delete(name)
        return False

    others = set(itertools.chain(files.names("ledger"), files.names("runs"))) - purposes.keys()
    with ThreadPoolExecutor(_PARALLEL, "rekey") as pool:
        signed = list(pool.map(sign_again, purposes))
        list(pool.map(files.delete, others))
    files.write(_FILE, _line(ids[1]))
    return Rekeyed(sum(signed), len(others) + signed.count(False))


def _read(files: NamedFiles) -> tuple[str, ...] | None:
    match = _ID.fullmatch(files.read(_FILE, _LIMIT) or b"")
    return tuple(part.decode() for part in match.groups() if part) if match else None


def _line(*ids: str) -> bytes:
    return f"pteforge key 1 {' '.join(ids)}\n".encode()


def _does_not_fit(url: str, own: str, other: str) -> StoreUnusable:
    return StoreUnusable(
        f"the store {url} is signed with {other}, and {KEY_VARIABLE} is the key {own}. Set it to the store's key, "
        "which everybody has who uses the store. `pteforge store rekey` changes the key of a store, and finishes a "
        "change that was interrupted. If the key is lost, use another prefix: everything can be computed again"
    )
