"""The progress of a run of a zoo, as an artifact in Prefect's UI: how many of the stages that are known are done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import islice
from threading import Lock

from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact

from ..tasks.runner import Done, StageCall
from .outcome import ModelOutcome
from .prefect_pages import artifact_key
from .session import Session, ZooObserver

_PAUSE = 5.0  # seconds between updates
_PATIENCE = 10.0  # seconds for the last update
_RUNS_READ = 30  # records that are looked at for how many stages a model has


class StageCounter:
    """Counts stages, and passes everything on to another observer.

    What models that were lowered before have yet to do is known from then; of others, the stages that have begun.
    """

    def __init__(self, observer: ZooObserver) -> None:
        self.inner = observer
        self.expected = 0
        self.done = 0
        self._begun = 0
        self._lock = Lock()

    @property
    def known(self) -> int:
        return max(self.expected, self._begun, self.done)

    def started(self, call: StageCall) -> None:
        with self._lock:
            self._begun += 1
        self.inner.started(call)

    def progressed(self, call: StageCall, done: int, total: int | None) -> None:
        self.inner.progressed(call, done, total)

    def finished(self, done: Done) -> None:
        with self._lock:
            self.done += 1
            self._begun += done.cached  # those that are found do not start
        self.inner.finished(done)

    def failed(self, call: StageCall, error: Exception) -> None:
        with self._lock:
            self.done += 1
        self.inner.failed(call, error)

    def completed(self, outcome: ModelOutcome) -> None:
        self.inner.completed(outcome)


@asynccontextmanager
async def progress_shown(session: Session) -> AsyncIterator[None]:
    """Shows the session's progress in the current flow run while the context is open; work never waits for it."""
    found = sum(outcome.ran + outcome.cached for outcome in session.outcomes.values())
    counter = session.observer = StageCounter(session.observer)
    counter.done = counter.expected = found
    ended = asyncio.Event()
    showing = asyncio.create_task(_show(session, counter, ended))
    try:
        yield
    finally:
        ended.set()
        with session.without_prefect_if_it_fails():
            await asyncio.wait_for(showing, _PATIENCE)
        if session.observer is counter:
            session.observer = counter.inner


async def _show(session: Session, counter: StageCounter, ended: asyncio.Event) -> None:
    key, shown = artifact_key("progress", session.zoo), (-1, -1)
    counter.expected += await asyncio.to_thread(_expected, session)
    artifact = await acreate_progress_artifact(0.0, key=key, description="No stage is done yet")
    while not ended.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _PAUSE)
        if ended.is_set() or shown == (shown := (counter.done, counter.known)):
            continue
        done, known = shown
        percent = 100 * done / max(known, 1)
        await aupdate_progress_artifact(artifact, percent, f"{done} of {known} known stages done")
    complete = "" if session.complete else "; some models were not reached"
    await aupdate_progress_artifact(artifact, 100.0, f"{counter.done} stages done{complete}")


def _expected(session: Session) -> int:
    """How many stages the models that are due had when they were last lowered."""
    due = {model.name for model in session.models if model.name not in session.outcomes}
    last: dict[str, int] = {}
    for run in islice(session.store.runs, _RUNS_READ if due else 0):
        for model in due & set(run.models if run.zoo == session.zoo else ()):
            last.setdefault(model, len(run.models[model]))
    return sum(last.values())
