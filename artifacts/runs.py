"""The history of runs: what each did, stage by stage, and which field of a key made a stage run again."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from .digest import Digest, canonical_json, parse_digest
from .files import Files

_log = logging.getLogger(__name__)

RETAINED = 200
"""Runs that are kept; older ones go when a new one is written."""

Status = Literal["ran", "cached", "failed"]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of a stage key that is not what it was.

    Attributes:
        field: dotted path, for example ``params.delegate.options``.
        before: its JSON value then; None where there was none.
        after: its JSON value now; None where there is none.
    """

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What happened to one stage of a model in a run.

    Attributes:
        slot: where the stage stands, for example ``resnet8/export/forward``.
        stage: the stage's name.
        method: the method it is for, None where it is for all.
        recipes: tags of the recipes that needed it.
        status: what happened.
        key: its stage key; None where it failed before it had one.
        differs: where it ran, the fields that changed since the slot's last use.
        seconds: wall time.
        message: why it failed, or why it ran where no field had changed; empty otherwise.
    """

    slot: str
    stage: str
    method: str | None
    recipes: tuple[str, ...]
    status: Status
    key: Digest | None
    differs: tuple[FieldChange, ...] = ()
    seconds: float = 0.0
    message: str = ""

    @property
    def step(self) -> str:
        """The slot without the model."""
        return self.slot.partition("/")[2]

    @property
    def telling(self) -> list[FieldChange]:
        """What differs, but for the keys of all stages before it that a report repeats: theirs are told with them."""
        return [change for change in self.differs if not change.field.startswith("params.stage_keys.")]

    @classmethod
    def from_json(cls, value: Any) -> StageOutcome:
        """Reads the JSON object of the attributes; raises ValueError for anything else."""
        match value:
            case {
                "slot": str() as slot,
                "stage": str() as stage,
                "method": str() | None as method,
                "recipes": list() as recipes,
                "status": "ran" | "cached" | "failed" as status,
                "key": str() | None as key,
                "differs": list() as differs,
                "seconds": float() as seconds,
                "message": str() as message,
            }:
                return cls(
                    slot,
                    stage,
                    method,
                    tuple(map(str, recipes)),
                    status,
                    None if key is None else parse_digest(key),
                    tuple(FieldChange(str(each["field"]), each["before"], each["after"]) for each in differs),
                    seconds,
                    message,
                )
        raise ValueError("not a stage outcome")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one run did.

    Attributes:
        id: a name of its own, without slashes.
        zoo: the zoo file or name.
        started: when, ISO 8601 in UTC.
        seconds: wall time.
        models: model name to its stages, in the order they finished.
    """

    id: str
    zoo: str
    started: str
    seconds: float
    models: Mapping[str, tuple[StageOutcome, ...]]

    def encode(self) -> bytes:
        """Canonical JSON."""
        models = {name: [_floating(outcome) for outcome in outcomes] for name, outcomes in self.models.items()}
        return canonical_json(
            {"id": self.id, "zoo": self.zoo, "started": self.started, "seconds": float(self.seconds), "models": models}
        )

    @classmethod
    def decode(cls, content: bytes) -> RunRecord:
        """Inverse of `encode`; raises ValueError for bytes that are not a run record."""
        match json.loads(content):
            case {
                "id": str() as name,
                "zoo": str() as zoo,
                "started": str() as started,
                "seconds": float() as seconds,
                "models": dict() as models,
            }:
                outcomes = {model: tuple(map(StageOutcome.from_json, stages)) for model, stages in models.items()}
                return cls(name, zoo, started, seconds, outcomes)
        raise ValueError("not a run record")


class Runs:
    """Run records, only ever added, the newest `RETAINED` kept."""

    def __init__(self, files: Files) -> None:
        """Keeps records in `files` as ``runs/<time>-<id>.json``."""
        self._files = files

    def write(self, record: RunRecord) -> None:
        """Adds a record, and drops the oldest ones beyond those that are kept."""
        self._files.write(_file(record), record.encode())
        for name in self._files.names("runs")[:-RETAINED]:
            self._files.delete(name)

    def latest(self, model: str | None = None) -> RunRecord | None:
        """The newest run, or the newest that had the model in it; None where there is none."""
        return next((run for run in self if model is None or model in run.models), None)

    def __iter__(self) -> Iterator[RunRecord]:
        """Runs from the newest to the oldest; unreadable ones are left out, with a warning."""
        for name in reversed(self._files.names("runs")):
            content = self._files.read(name)
            try:
                if content is not None:
                    yield RunRecord.decode(content)
            except (ValueError, TypeError, KeyError) as error:
                _log.warning("the run record %s is not readable: %s", name, error)


def differing_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    """Fields of two JSON objects that differ, by dotted path; descends where both have an object."""
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


def _floating(outcome: StageOutcome) -> dict[str, Any]:
    return asdict(outcome) | {"seconds": float(outcome.seconds)}


def _file(record: RunRecord) -> str:
    """Names sort by time."""
    started = datetime.fromisoformat(record.started).astimezone(UTC)
    return f"runs/{started:%Y%m%dT%H%M%S.%f}-{record.id}.json"
