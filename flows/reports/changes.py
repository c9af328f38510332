"""Changes since earlier runs: which files failed, are new, differ or are as before, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from ...artifacts.runs import RunRecord, Runs, StageOutcome
from ...tasks.results.delivered import Delivered
from ...tasks.results.finding import Fact

State = Literal["failed", "changed", "new", "as before", "not applicable"]
"""States of files, the most interesting first."""

_RUNS_READ = 30  # records that are searched for earlier runs of a zoo


@dataclass(frozen=True, slots=True)
class Change:
    """How a figure changed since an earlier run, in words, and whether that is good."""

    text: str
    tone: Literal["better", "worse", "same"]


@dataclass(frozen=True, slots=True)
class Compared:
    """The outcome of a recipe of a model, and that of the last run, if there is one."""

    result: Delivered
    before: Delivered | None

    @property
    def state(self) -> State:
        result, before = self.result, self.before
        if result.status in ("failed", "not applicable"):
            return result.status
        return "new" if before is None else "as before" if _content(result) == _content(before) else "changed"

    @property
    def change(self) -> str:
        """How it differs from the last run's, in a few words; empty if it does not, or there is none."""
        result, before, state = self.result, self.before, self.state
        if before is None or state == "not applicable":
            return ""
        if before.failure or state == "failed":
            return "failed before" if before.failure else "made before"
        changes = changes_since(result, before)
        text = ", ".join(f"{name} {change.text}" for name, change in changes.items() if change.tone != "same")
        return text or ("other bytes" if state == "changed" else "")


def compare(results: Iterable[Delivered], before: RunRecord | None) -> list[Compared]:
    """The outcomes of recipes, each with that of an earlier run, if there is one."""
    return [Compared(file, Delivered.of_run(before, file.model, file.recipe) if before else None) for file in results]


def _content(result: Delivered) -> tuple[Any, ...]:
    """The parts that are equal for equal files; their provenance may differ."""
    digests = {ending: digest for ending, digest in result.digests.items() if ending != "json"}
    figures = [fact.text for name, fact in result.columns.items() if name in ("SQNR", "score")]
    return digests, dict(result.assets), figures


def changes_since(result: Delivered, last: Delivered) -> dict[str, Change]:
    """How a file differs from the one of an earlier run, by column."""
    now, before = result.columns, last.columns
    return {name: _change(now[name], before[name]) for name in ("size", "SQNR") if name in now and name in before}


def _change(now: Fact, before: Fact) -> Change:
    of_size = now.unit == "B"
    if now.value == before.value or (now.text == before.text and not of_size):
        return Change("=", "same")
    tone: Literal["better", "worse"] = "better" if (now.number > before.number) != of_size else "worse"
    difference = now.number - before.number
    if of_size:
        percent = 100 * difference / before.number if before.number else math.inf
        return Change(f"{percent:+.1f} %" if abs(percent) >= 0.05 else f"{difference:+.0f} B", tone)
    if not all(isinstance(fact.value, float) for fact in (now, before)):  # exact, or nothing has run it
        return Change(f"was {before.text}", tone)
    return Change(f"{difference:+.1f} {now.unit}", tone)


def runs_before(run: str, zoo: str, runs: Runs) -> Iterator[RunRecord]:
    """Other runs of a zoo that should make files, the newest first, without parts of runs; raises StoreUnusable."""
    others = (other for other in islice(runs.of_zoo(zoo), _RUNS_READ) if other.id != run and not other.part_of)
    return (other for other in others if not other.parameters.get("until"))


def with_the_rest(record: RunRecord, earlier: Iterable[RunRecord]) -> RunRecord:
    """Completes a run of a part of a zoo from earlier runs into the same folder, which come newest first."""
    parts = [record]
    for run in earlier:
        if not is_of_a_part(parts[-1]):
            break
        if run.parameters.get("out") == record.parameters.get("out"):
            parts.append(run)
    files: dict[str, Mapping[str, Any]] = {}
    stages: dict[str, tuple[StageOutcome, ...]] = {}
    for run in reversed(parts):
        files |= {model: {**files.get(model, {}), **recipes} for model, recipes in run.files.items()}
        stages |= {model: outcomes for model, outcomes in run.models.items() if model in run.files}
    return replace(record, files=files, models=stages)


def is_of_a_part(record: RunRecord) -> bool:
    """Whether a run was for a part of its zoo, or did not finish."""
    return record.selective or not record.ended
