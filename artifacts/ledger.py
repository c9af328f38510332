"""The ledger: stage key to the refs of its outputs. It is what makes a rerun free."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from .digest import Digest, canonical_json, digest_bytes, parse_digest
from .files import Files
from .records import SlotRecord, StageRecord
from .signing import Seal

__all__ = ["Ledger", "SlotRecord", "StageRecord"]

Record = TypeVar("Record")
_log = logging.getLogger(__name__)


class Ledger:
    """Records of finished stages, written only after every output is in the store.

    A record that cannot be trusted (cut off, garbled, of another version, not signed with our key) is a miss: it is
    reported as a warning and written anew when the stage has run again.
    """

    def __init__(self, files: Files, seal: Seal) -> None:
        """Keeps records in `files` below ``ledger/``, wrapped by `seal`."""
        self._files = files
        self._seal = seal

    def lookup(self, key: Digest) -> StageRecord | None:
        """The record of a stage key, None where the stage has to run."""
        return self._read(_stage_file(key), f"stage/{key}", StageRecord.decode)

    def commit(self, record: StageRecord) -> None:
        """Writes a record; every object of its outputs must be in the store."""
        self._write(_stage_file(record.key), f"stage/{record.key}", record.encode())

    def forget(self, key: Digest) -> None:
        """Drops a record, where there is one: the stage will run again."""
        self._files.delete(_stage_file(key))

    def keys(self) -> list[Digest]:
        """All stage keys that have a record, good or not."""
        names = (name.rsplit("/", 1)[-1] for name in self._files.names("ledger/stages"))
        return [parse_digest(name) for name in names if _is_digest(name)]

    def __iter__(self) -> Iterator[StageRecord]:
        """All records that can be used."""
        for key in self.keys():
            if record := self.lookup(key):
                yield record

    def last(self, slot: str) -> SlotRecord | None:
        """What a slot was last used with."""
        return self._read(_named_file("slots", slot), f"slot/{slot}", SlotRecord.decode)

    def remember(self, slot: str, key: Digest, fields: Mapping[str, Any]) -> None:
        """Notes what a slot is used with now."""
        record = SlotRecord(slot, key, fields)
        self._write(_named_file("slots", slot), f"slot/{slot}", record.encode())

    def watched(self, source: str) -> tuple[str, ...]:
        """Modules that a model's source turned out to load beyond those its text names."""
        return self._read(_named_file("watch", source), f"watch/{source}", _decode_names) or ()

    def watch(self, source: str, modules: Sequence[str]) -> None:
        """Notes the modules of `watched`, in place of those noted before."""
        self._write(_named_file("watch", source), f"watch/{source}", canonical_json(list(modules)))

    def _read(self, name: str, purpose: str, decode: Callable[[bytes], Record]) -> Record | None:
        sealed = self._files.read(name)
        try:
            return None if sealed is None else decode(self._seal.open(purpose, sealed))
        except ValueError as error:
            _log.warning("the ledger's record %s is not used: %s", purpose, error)
            return None

    def _write(self, name: str, purpose: str, content: bytes) -> None:
        self._files.write(name, self._seal.close(purpose, content))


def _stage_file(key: Digest) -> str:
    return f"ledger/stages/{key[:2]}/{key}"


def _named_file(folder: str, name: str) -> str:
    """Any text names a slot or a source: its digest names the file."""
    return f"ledger/{folder}/{digest_bytes(name.encode())}"


def _decode_names(content: bytes) -> tuple[str, ...]:
    match json.loads(content):
        case list() as names if all(isinstance(name, str) for name in names):
            return tuple(names)
    raise ValueError("not a list of names")


def _is_digest(text: str) -> bool:
    try:
        parse_digest(text)
    except ValueError:
        return False
    return True
