"""The history of runs: the outcome of each stage, and which fields of its key had changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from ..errors import InputError
from .digest import Digest, canonical_json, digest_bytes, digest_json
from .files import NamedFiles
from .records import Record, RecordFiles, Seal

RETAINED = 200  # how many runs of each zoo are kept; writing another one removes the oldest
_CALL = 0.05  # seconds

Status = Literal["ran", "cached", "failed"]
RunStatus = Literal["running", "completed", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of a stage key that changed, with its JSON values; None where it does not exist."""

    field: str  # dotted path, for example ``params.delegate.options``
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class StageOutcome(Record):
    """The outcome of one stage of a model in a run."""

    slot: str  # for example ``resnet8/export/forward``
    stage: str
    method: str | None  # None: the stage is for all methods
    recipes: tuple[str, ...]  # tags of the recipes that use it
    status: Status
    key: Digest | None  # None if it failed before it had one
    differs: tuple[FieldChange, ...] = ()
    seconds: float = 0.0  # of a cached stage, in the run that made it; so is `peak_memory`
    message: str = ""  # why it failed, or why it ran although no field had changed
    queued: float = 0.0  # seconds from when it could have run to its start
    peak_memory: int = 0  # bytes that its process used; 0 if unknown
    predicted_memory: int = 0  # bytes that it waited for before its start

    @property
    def step(self) -> str:
        return self.slot.partition("/")[2]

    @property
    def waited(self) -> bool:
        """Whether it waited for longer than the call itself takes."""
        return self.queued >= _CALL

    @property
    def telling(self) -> list[FieldChange]:
        """The changes, without the stage keys that a report repeats: those stages list their own changes."""
        return [change for change in self.differs if not change.field.startswith("params.stage_keys.")]


@dataclass(frozen=True, slots=True)
class ReleaseOutcome(Record):
    """The outcome of a run's release, which `channel` should name."""

    url: str  # of the releases
    channel: str
    release: str = ""  # its name; empty if none was made
    reasons: tuple[str, ...] = ()  # why the channel does not name it, or why none was made
    held_back: bool = False  # whether gates are the reason

    @property
    def summary(self) -> str:
        """The outcome without the reasons."""
        if not self.release:
            return f"nothing is released at {self.url} for {self.channel!r}"
        held = " and is held back" if self.held_back else ""
        return f"{self.release} at {self.url} is {'not ' if self.reasons else ''}{self.channel!r}{held}"

    def describe(self) -> str:
        return ": ".join(filter(None, (self.summary, "; ".join(self.reasons))))


@dataclass(frozen=True, slots=True)
class RunRecord(Record):
    """One run, written when it begins, while it runs, and when it ends."""

    id: str
    zoo: str
    started: str  # ISO 8601 in UTC
    seconds: float
    # model name -> its stages in the order in which they finished; until a model is in `files`, the finished ones
    models: Mapping[str, tuple[StageOutcome, ...]]
    status: RunStatus = "completed"  # a killed run stays ``running``
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the flow `export-zoo`
    host: str = ""  # name of the machine
    version: str = ""  # of pteforge
    commit: str = ""  # of the zoo's git repository, with ``-dirty`` where tracked files were changed
    zoo_digest: str = ""  # SHA-256 of the zoo after includes and overrides
    # model name -> recipe name -> its outcome; JSON of `tasks.results.delivered.Delivered`
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pid: int = 0  # on the host
    release: ReleaseOutcome | None = None  # None if it was to make none
    url: str = ""  # of its page in Prefect; empty where no server keeps it
    # Id of the run that had it lower some models and takes its record over at the end; if that run died, it stays.
    part_of: str = ""

    @property
    def zoo_file(self) -> str:
        """Path of the zoo's file, or the builder; empty where that is not recorded."""
        return str(self.parameters.get("zoo") or "")

    @property
    def ended(self) -> bool:
        """Whether it came to its end, well or not, so that `models` has all of its stages."""
        return self.status not in ("running", "interrupted")

    @property
    def selective(self) -> bool:
        """Whether it was asked for less than all of its zoo."""
        chosen = any((self.parameters.get(name) or "*") != "*" for name in ("models", "recipes"))
        return chosen or bool(self.parameters.get("until"))

    def files_that(self, *, failed: bool) -> set[tuple[str, str]]:
        """Models with those of their recipes that failed, or that did not."""
        return {
            (model, recipe)
            for model, recipes in self.files.items()
            for recipe, entry in recipes.items()
            if (entry.get("status") == "failed") == failed
        }

    @property
    def ending(self) -> str:
        """The status, or ``held back`` of a run whose files were all made and whose release gates hold back."""
        held_back = self.release and self.release.held_back and not self.files_that(failed=True)
        return "held back" if held_back else self.status


@dataclass(frozen=True, slots=True)
class RunName:
    """A unique name of one attempt of a run, such as ``01a220c09`` or ``01a220c09@2``."""

    short: str  # the first digits of the run's id, at least eight, as many as make it unique in the store
    attempt: int  # from 1; Prefect's retries of a failed run have its id
    attempts: int  # of that run

    def __str__(self) -> str:
        return f"{self.short}@{self.attempt}" if self.attempts > 1 else self.short


def run_lease(run: str) -> Digest:
    """The lease that a run holds in its store as long as it lives, by the run's id."""
    return digest_json({"run": run})


class Runs:
    """The newest `RETAINED` run records of each zoo. A zoo is known by its name."""

    def __init__(self, files: NamedFiles, seal: Seal | None = None) -> None:
        """Keeps records in `files`, wrapped by `seal`, by default with a checksum.

        They are ``runs/<time>-<zoo>-<id>.json``, where <zoo> has 8 digits each of the SHA-256 of its name and path.
        """
        self._files = files
        self._records = RecordFiles(files, seal or Seal(None))

    def write(self, record: RunRecord) -> None:
        started = datetime.fromisoformat(record.started).astimezone(UTC)
        name = f"runs/{started:{_TIME}}-{_tag(record)}-{record.id}.json"  # names sort by time
        self._records.write(name, name, record.encode())
        of_zoo = _tag(record)[:_DIGITS]
        for old in [each for each in self._files.names("runs") if _tag_in(each)[:_DIGITS] == of_zoo][:-RETAINED]:
            self._files.delete(old)

    def of_zoo(self, zoo: str) -> Iterator[RunRecord]:
        """The runs of a zoo, the newest first."""
        wanted = digest_bytes(zoo.encode())[:_DIGITS]
        names = [name for name in self._files.names("runs") if _tag_in(name)[:_DIGITS] == wanted]
        return (run for run in map(self._read, reversed(names)) if run and run.zoo == zoo)

    def namesakes(self, record: RunRecord) -> Iterator[RunRecord]:
        """The newest run of each other zoo file with the same name as a run's."""
        own, seen = _tag(record), {""}
        for name in reversed(self._files.names("runs")):
            tag = _tag_in(name)
            if tag[:_DIGITS] == own[:_DIGITS] and tag != own and tag not in seen and (run := self._read(name)):
                seen.add(tag)
                yield run

    def find(self, run: str) -> RunRecord | None:
        """The record of a run's last attempt."""
        names = self._attempts().get(run)
        return self._read(names[-1]) if names else None

    def with_names(self) -> Iterator[tuple[RunName, RunRecord]]:
        """All runs, the newest first, and what to call them in this store."""
        names = _names(self._attempts())
        found = ((names[file], self._read(file)) for file in sorted(names, reverse=True))
        return ((name, run) for name, run in found if run)

    def named(self, text: str) -> tuple[RunName, RunRecord] | None:
        """The run whose id begins with a text, by default its last attempt (``@N``); InputError if ambiguous."""
        start, _, attempt = text.partition("@")
        attempts = self._attempts()
        found = [start] if start in attempts else [run for run in attempts if start and run.startswith(start)]
        if not found:
            return None
        names = _names(attempts)
        if len(found) > 1:
            newest = sorted((attempts[run][-1] for run in found), reverse=True)
            listed = [f"{names[file].short} ({_started(file)})" for file in newest[:_LISTED]]
            listed += [f"and {len(newest) - _LISTED} more"] if len(newest) > _LISTED else []
            problem = f"{start!r} begins the ids of {len(found)} runs: {', '.join(listed)}"
            raise InputError(f"{problem}; write more of the id")
        files = attempts[found[0]]
        if attempt and not (attempt.isdecimal() and 1 <= int(attempt) <= len(files)):
            raise InputError(f"{text!r} names no run: {start!r} had attempts 1 to {len(files)}")
        file = files[int(attempt or len(files)) - 1]
        run = self._read(file)
        return (names[file], run) if run else None

    def take(self, run: str) -> RunRecord | None:
        """Removes the records of a run, one for each of its attempts; returns the last one."""
        record = self.find(run)
        for name in self._attempts().get(run, ()):
            self._files.delete(name)
        return record

    def _attempts(self) -> dict[str, list[str]]:
        """Files of records by the run's id, the oldest first."""
        attempts: dict[str, list[str]] = {}
        for name in self._files.names("runs"):
            if found := _NAMED.fullmatch(name):
                attempts.setdefault(found["run"], []).append(name)
        return attempts

    def purposes(self) -> dict[str, str]:
        return {name: name for name in self._files.names("runs")}

    def __iter__(self) -> Iterator[RunRecord]:
        return filter(None, map(self._read, reversed(self._files.names("runs"))))

    def _read(self, name: str) -> RunRecord | None:
        return self._records.read(name, name, RunRecord)


def differing_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    """Fields that differ between two JSON objects, by dotted path; compares nested objects field by field."""
    changes: list[FieldChange] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += [
                FieldChange(f"{name}.{change.field}", change.before, change.after)
                for change in differing_fields(old, new)
            ]
        elif (name in before) != (name in after) or canonical_json(old) != canonical_json(new):
            changes.append(FieldChange(name, old, new))
    return tuple(changes)


_DIGITS = 8
_SHORT = 8  # digits of an id at least
_LISTED = 10  # runs of which an ambiguous name may be
_TIME = "%Y%m%dT%H%M%S.%f"
_NAMED = re.compile(rf"runs/([0-9T.]+)-(?:(?P<tag>[0-9a-f]{{{2 * _DIGITS}}})-)?(?P<run>[^/]+)\.json")


def _tag(record: RunRecord) -> str:
    return "".join(digest_bytes(text.encode())[:_DIGITS] for text in (record.zoo, record.zoo_file))


def _tag_in(name: str) -> str:
    """The zoo's tag in the name of a record; empty for names that `Runs` does not write."""
    found = _NAMED.fullmatch(name)
    return (found["tag"] if found else None) or ""


def _names(attempts: Mapping[str, Sequence[str]]) -> dict[str, RunName]:
    """Names of runs by the file of each record, from the files by run id, the oldest first."""
    names: dict[str, RunName] = {}
    ids = sorted(attempts)
    for before, run, after in zip(["", *ids], ids, [*ids[1:], ""], strict=False):
        alone = (n for n in range(_SHORT, len(run)) if run[:n] != before[:n] and run[:n] != after[:n])
        short, files = run[: next(alone, len(run))], attempts[run]
        names |= {file: RunName(short, number, len(files)) for number, file in enumerate(files, 1)}
    return names


def _started(name: str) -> str:
    time = name.removeprefix("runs/").partition("-")[0]
    try:
        return f"{datetime.strptime(time, _TIME):%Y-%m-%d %H:%M} UTC"  # noqa: DTZ007 - it is in UTC
    except ValueError:  # a name that `Runs` did not write
        return time
