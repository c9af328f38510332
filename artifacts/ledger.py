"""The ledger maps stage keys to the refs of their outputs. It makes a rerun free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from .digest import Digest, canonical_json, digest_bytes, is_digest
from .files import NamedFiles
from .records import Record, RecordFiles, Seal, decode
from .ref import ArtifactRef, BlobRef
from .runs import StageOutcome

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class StageRecord(Record):
    """One finished stage: its key and its outputs."""

    key: Digest
    fields: Mapping[str, Any]  # JSON values by name that the key was computed from
    outputs: Mapping[str, ArtifactRef]  # by role
    seconds: float
    peak_memory: int  # bytes that its process used beyond the worker server's own; 0 if unknown
    finished: str  # ISO 8601 in UTC
    log: BlobRef | None = None  # output of its process
    refreshed_by: str = ""  # the run that made this stage again because it was asked to refresh
    reads: tuple[Digest, ...] = ()  # every object of its inputs


@dataclass(frozen=True, slots=True)
class SlotRecord(Record):
    """The key that a slot (such as ``resnet8/export/forward``) had in its last use, to compare a new key with."""

    slot: str
    key: Digest
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WatchRecord(Record):
    """Modules that a model's source loaded although its text does not name them, and what it read."""

    source: str
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundCase(Record):
    """Inputs that a search has found for a file, by the file's identity, and whether the file was wrong on them."""

    inputs: ArtifactRef
    file: Digest
    wrong: bool


@dataclass(frozen=True, slots=True)
class FoundRecord(Record):
    """The last inputs that searches have found for the files of a model and a recipe, the oldest first."""

    name: str
    found: tuple[FoundCase, ...]


_MOST_FOUND = 8


@dataclass(frozen=True, slots=True)
class SourceRecord(Record):
    """User code that a model's stages run, as it was in their keys."""

    source: Mapping[str, Any]  # where it comes from, as JSON
    watched: tuple[str, ...]  # what was watched besides the modules that its text names
    digest: Digest  # of its part of the keys


@dataclass(frozen=True, slots=True)
class ModelRecord(Record):
    """A model whose stages, for all of its recipes, are in the ledger: an index that spares reading their records."""

    key: Digest  # of all that decides which stages the model has and what they do, besides user code
    distributions: tuple[str, ...]  # packages whose versions the key covers
    sources: tuple[SourceRecord, ...]
    stages: tuple[StageOutcome, ...]  # as recorded by a run that finds all of them cached
    recipes: tuple[Any, ...]  # the outcome of each; JSON of `tasks.results.delivered.Delivered`
    objects: tuple[BlobRef, ...]  # every object of the artifacts of its files


_WHOLE: Any = dict[str, ModelRecord]
_PURPOSES = {"slots": "slot", "watch": "watch", "found": "found", "zoos": "zoo"}
"""Folder of records that are found by name, to the first word of the purpose that they are sealed for."""

_ZOO_LIMIT = 512 * 2**20  # bytes


class Ledger:
    """Records of finished stages, written after all outputs are in the store; untrusted ones count as misses."""

    def __init__(self, files: NamedFiles, seal: Seal) -> None:
        """Keeps records in `files` below ``ledger/``, wrapped by `seal`."""
        self._files = files
        self._records = RecordFiles(files, seal)

    def lookup(self, key: Digest) -> StageRecord | None:
        return self._records.read(_stage_file(key), f"stage/{key}", StageRecord)

    def commit(self, record: StageRecord) -> None:
        self._records.write(_stage_file(record.key), f"stage/{record.key}", record.encode())

    def forget(self, *keys: Digest) -> None:
        """Drops the records of stages, and all records of whole models, which may rest on them."""
        for key in keys:
            self._files.delete(_stage_file(key))
        for name in self._files.names("ledger/zoos"):
            self._files.delete(name)

    def __iter__(self) -> Iterator[StageRecord]:
        for name in self._files.names("ledger/stages"):
            key = name.rsplit("/", 1)[-1]
            if is_digest(key) and (record := self.lookup(Digest(key))):
                yield record

    def last(self, slot: str) -> SlotRecord | None:
        return self._read("slots", slot, SlotRecord)

    def last_run(self, slot: str) -> StageRecord | None:
        """The record of the stage that a slot had in its last use."""
        last = self.last(slot)
        return self.lookup(last.key) if last else None

    def remember(self, slot: str, key: Digest, fields: Mapping[str, Any]) -> None:
        self._write("slots", slot, SlotRecord(slot, key, fields).encode())

    def watched(self, source: str) -> tuple[str, ...]:
        """What a source's `WatchRecord` lists."""
        record = self._read("watch", source, WatchRecord)
        return record.modules if record else ()

    def watch(self, source: str, modules: Sequence[str]) -> None:
        self._write("watch", source, WatchRecord(source, tuple(modules)).encode())

    def slots(self) -> Iterator[SlotRecord]:
        yield from filter(None, (self.last(record.slot) for record in self._all("slots", SlotRecord)))

    def found_inputs(self, name: str) -> tuple[FoundCase, ...]:
        """What the `FoundRecord` of a model and a recipe lists."""
        record = self._read("found", name, FoundRecord)
        return record.found if record else ()

    def keep_found(self, name: str, *found: FoundCase) -> None:
        """Adds inputs to those that are kept, the newest last; inputs that are there already move to the end."""
        kept = [known for known in self.found_inputs(name) if known.inputs not in [new.inputs for new in found]]
        self._write("found", name, FoundRecord(name, (*kept, *found)[-_MOST_FOUND:]).encode())

    def all_found(self) -> Iterator[FoundRecord]:
        return (FoundRecord(one.name, self.found_inputs(one.name)) for one in self._all("found", FoundRecord))

    def watch_lists(self) -> Iterator[WatchRecord]:
        for record in self._all("watch", WatchRecord):
            if modules := self.watched(record.source):
                yield WatchRecord(record.source, modules)

    def purposes(self) -> dict[str, str]:
        """Files of records, and the purposes that they are sealed for, as far as that is known without opening them."""
        names = {
            "slots": [record.slot for record in self._all("slots", SlotRecord)],
            "watch": [record.source for record in self._all("watch", WatchRecord)],
            "found": [record.name for record in self._all("found", FoundRecord)],
        }
        stages = {file: f"stage/{file.rpartition('/')[2]}" for file in self._files.names("ledger/stages")}
        return stages | dict(_sealed(folder, name) for folder in names for name in names[folder])

    def whole_models(self, zoo: str) -> Mapping[str, ModelRecord]:
        """The models of a zoo that were whole when it was last lowered, by name: one file for all of them."""
        return self._read("zoos", zoo, _WHOLE, _ZOO_LIMIT) or {}

    def remember_whole_models(self, zoo: str, models: Mapping[str, ModelRecord]) -> None:
        self._write("zoos", zoo, canonical_json({name: model.to_json() for name, model in models.items()}))

    def _read(self, folder: str, name: str, kind: type[_Kind], limit: int | None = None) -> _Kind | None:
        return self._records.read(*_sealed(folder, name), kind, limit)

    def _write(self, folder: str, name: str, content: bytes) -> None:
        self._records.write(*_sealed(folder, name), content)

    def _all(self, folder: str, kind: type[_Kind]) -> Iterator[_Kind]:
        """The content of records whose files are named by a digest; checking their seals needs the name."""
        for name in self._files.names(f"ledger/{folder}"):
            with suppress(ValueError):
                yield decode(kind, (self._files.read(name) or b"").partition(b"\n")[2])


def _stage_file(key: Digest) -> str:
    return f"ledger/stages/{key[:2]}/{key}"


def _sealed(folder: str, name: str) -> tuple[str, str]:
    """The file and the purpose of a record. A slot or source may have any name, so a digest names its file."""
    return f"ledger/{folder}/{digest_bytes(name.encode())}", f"{_PURPOSES[folder]}/{name}"
