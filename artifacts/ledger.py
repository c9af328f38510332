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
    """One finished stage: its key and its outputs.

    Attributes:
        fields: what the key was computed from, by name; JSON values.
        outputs: artifacts by role.
        peak_memory: bytes that its process used beyond the worker server's own; 0 if unknown.
        finished: when, ISO 8601 in UTC.
        log: the output of its process, None if there was none.
        refreshed_by: the run that was asked to make everything again and made this; empty for other runs.
        reads: every object of its inputs.
    """

    key: Digest
    fields: Mapping[str, Any]
    outputs: Mapping[str, ArtifactRef]
    seconds: float
    peak_memory: int
    finished: str
    log: BlobRef | None = None
    refreshed_by: str = ""
    reads: tuple[Digest, ...] = ()


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
    """Code of the user's that a model's stages run, as it was in their keys.

    Attributes:
        source: where it comes from, as JSON.
        watched: what was watched besides the modules that its text names.
        digest: of its part of the keys.
    """

    source: Mapping[str, Any]
    watched: tuple[str, ...]
    digest: Digest


@dataclass(frozen=True, slots=True)
class ModelRecord(Record):
    """A model with all of whose recipes the ledger has every stage: an index that spares reading each stage's record.

    Attributes:
        key: digest of all that decides which stages the model has and what they do, besides the user's code.
        distributions: packages whose versions the key covers.
        stages: as a run that finds all of them records them.
        recipes: what came of each; JSON of `tasks.results.delivered.Delivered`.
        objects: every object of the artifacts of its files.
    """

    key: Digest
    distributions: tuple[str, ...]
    sources: tuple[SourceRecord, ...]
    stages: tuple[StageOutcome, ...]
    recipes: tuple[Any, ...]
    objects: tuple[BlobRef, ...]


_WHOLE: Any = dict[str, ModelRecord]
_ZOO_LIMIT = 512 * 2**20  # bytes


class Ledger:
    """Records of finished stages, written only after every output is in the store.

    A record that cannot be trusted is a miss (see `RecordFiles`), and is replaced when the stage has run again.
    """

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
        return self._records.read(_named_file("slots", slot), f"slot/{slot}", SlotRecord)

    def last_run(self, slot: str) -> StageRecord | None:
        """The record of the stage that a slot had in its last use."""
        last = self.last(slot)
        return self.lookup(last.key) if last else None

    def remember(self, slot: str, key: Digest, fields: Mapping[str, Any]) -> None:
        record = SlotRecord(slot, key, fields)
        self._records.write(_named_file("slots", slot), f"slot/{slot}", record.encode())

    def watched(self, source: str) -> tuple[str, ...]:
        """What a source's `WatchRecord` lists."""
        found = self._records.read(_named_file("watch", source), f"watch/{source}", WatchRecord)
        return found.modules if found else ()

    def watch(self, source: str, modules: Sequence[str]) -> None:
        self._records.write(
            _named_file("watch", source), f"watch/{source}", WatchRecord(source, tuple(modules)).encode()
        )

    def slots(self) -> Iterator[SlotRecord]:
        """The last use of every slot."""
        for found in self._all("slots", SlotRecord):
            if record := self.last(found.slot):
                yield record

    def found_inputs(self, name: str) -> tuple[FoundCase, ...]:
        """What the `FoundRecord` of a model and a recipe lists."""
        record = self._records.read(_named_file("found", name), f"found/{name}", FoundRecord)
        return record.found if record else ()

    def keep_found(self, name: str, *found: FoundCase) -> None:
        """Adds inputs to those that are kept, the newest last; these may be old ones."""
        kept = [known for known in self.found_inputs(name) if known.inputs not in [new.inputs for new in found]]
        record = FoundRecord(name, (*kept, *found)[-_MOST_FOUND:])
        self._records.write(_named_file("found", name), f"found/{name}", record.encode())

    def all_found(self) -> Iterator[FoundRecord]:
        """The inputs that were found for each model and recipe."""
        for listed in self._all("found", FoundRecord):
            yield FoundRecord(listed.name, self.found_inputs(listed.name))

    def watch_lists(self) -> Iterator[WatchRecord]:
        """The list of each source."""
        for found in self._all("watch", WatchRecord):
            if modules := self.watched(found.source):
                yield WatchRecord(found.source, modules)

    def purposes(self) -> dict[str, str]:
        """Files of records, and the purposes that they are sealed for, as far as that is known without opening them."""
        keys = [(name, name.rpartition("/")[2]) for name in self._files.names("ledger/stages")]
        slots = {_named_file("slots", found.slot): f"slot/{found.slot}" for found in self._all("slots", SlotRecord)}
        lists = self._all("watch", WatchRecord)
        watched = {_named_file("watch", found.source): f"watch/{found.source}" for found in lists}
        listed = self._all("found", FoundRecord)
        found = {_named_file("found", record.name): f"found/{record.name}" for record in listed}
        return {name: f"stage/{key}" for name, key in keys} | slots | watched | found

    def whole_models(self, zoo: str) -> Mapping[str, ModelRecord]:
        """The models of a zoo that were whole when it was last lowered, by name: one file for all of them."""
        return self._records.read(_named_file("zoos", zoo), f"zoo/{zoo}", _WHOLE, _ZOO_LIMIT) or {}

    def remember_whole_models(self, zoo: str, models: Mapping[str, ModelRecord]) -> None:
        content = canonical_json({name: model.to_json() for name, model in models.items()})
        self._records.write(_named_file("zoos", zoo), f"zoo/{zoo}", content)

    def _all(self, folder: str, kind: type[_Kind]) -> Iterator[_Kind]:
        """What records say that are named by a digest; their seals, which need the name, are not checked here."""
        for name in self._files.names(f"ledger/{folder}"):
            with suppress(ValueError):
                yield decode(kind, (self._files.read(name) or b"").partition(b"\n")[2])


def _stage_file(key: Digest) -> str:
    return f"ledger/stages/{key[:2]}/{key}"


def _named_file(folder: str, name: str) -> str:
    """A slot or source may have any name, so its file is named by a digest."""
    return f"ledger/{folder}/{digest_bytes(name.encode())}"
