"""The record of a run in the store, its page, and the release of its files."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from ...artifacts.files import remove_abandoned_files, reserved_space
from ...artifacts.runs import ReleaseOutcome, RunRecord, RunStatus, run_lease
from ...errors import PteforgeError, StoreError, first_line
from ...tasks.results.delivered import Delivered

if TYPE_CHECKING:
    from ..releases.records import Published
    from .session import Session

_log = logging.getLogger(__name__)

_RECORD, _RECORD_OF_FILE = 1 << 20, 1 << 14  # bytes that are reserved for a run's record, and for each file in it
_EVERY, _EVERY_OF_PART = 15.0, 3.0  # seconds between two records while a run works


@dataclass(eq=False)
class Recording:
    """Keeps the record of a session, and publishes its files."""

    session: Session
    recordable: bool = True  # whether the store has taken the record so far
    page: Path | None = None  # about the run, once it is there
    release: ReleaseOutcome | None = None
    attempted: RunRecord | None = None  # the record of the run's last attempt, if it is tried again
    _published: Published | PteforgeError | None = None  # what `publish` returned or raised
    _tried_to_publish: bool = False
    _recording: Lock = field(default_factory=Lock)
    _reserve: ExitStack = field(default_factory=ExitStack)  # space for the last record, should the disk become full
    _ended: Event = field(default_factory=Event)  # set before the last record is written

    @contextmanager
    def open(self, metrics: Path | None = None) -> Iterator[None]:
        """Keeps a record of the run in the store: written now, from time to time, and when the context ends.

        Meanwhile the run holds a lease, which shows that it is alive: `gc` keeps what it publishes, which may be
        between two stages and in no record. Removes half-written files of killed runs from the results. Writes the page
        at the end, with the outcome of `publish`, and metrics to the path `metrics`.
        """
        from .telemetry import Telemetry  # noqa: PLC0415 - imports that only runs need

        session, progress = self.session, self.session.progress
        progress.observe(Telemetry(session, metrics))
        status: RunStatus = "interrupted"
        with ExitStack() as stack:
            with suppress(StoreError):  # a store that cannot be written can still serve what it has
                stack.enter_context(session.store.leases.hold(run_lease(session.id)))
            try:
                space = session.store.local.root / "tmp"
                for folder in (space, session.out, *(session.out / model for model in progress.models)):
                    remove_abandoned_files(folder)
                with suppress(StoreError, OSError):
                    size = _RECORD + _RECORD_OF_FILE * sum(len(model.recipes) for model in session.models)
                    self._reserve.enter_context(reserved_space(space, size))
                self._warn_of_namesakes(self.save("running"))
                Thread(target=self._keep_recording, name="record", daemon=True).start()
                yield
                held_back = bool(self.release and self.release.held_back) or isinstance(self._published, Exception)
                failed = progress.outcome().failures or not progress.complete or held_back
                status = "failed" if failed else "completed"
            except Exception:
                status = "failed"
                raise
            finally:  # before the lease is released: without both, the run counts as killed
                record = self.save(status)
                if status != "interrupted":
                    self._write_page(record)
                for observer in progress.observers:
                    observer.ended(record)

    def save(self, status: RunStatus) -> RunRecord:
        """Writes the run's record over an earlier one; warns if the store cannot take it."""
        if status != "running":
            self._ended.set()
            self._reserve.close()
        record = self.describe(status)
        try:
            with self._recording:
                self.session.store.runs.write(record)
            for index in (self.session.results.known_files, self.session.store.inputs, self.session.whole_models):
                with suppress(StoreError):  # the next run takes longer without it
                    index.save()
        except StoreError as error:
            if self.recordable:
                _log.warning("the run is not recorded: %s", error)
            self.recordable = False
        return record

    def _keep_recording(self) -> None:
        """Writes the record from time to time, so that there is one even if the run is killed."""
        every = _EVERY if self.session.part_of is None else _EVERY_OF_PART
        pause, recorded = every, 0
        while not self._ended.wait(pause):
            if recorded == (recorded := self.session.progress.pace.done):
                continue
            began = time.monotonic()
            with self._recording, suppress(StoreError):  # the last record says so
                if not self._ended.is_set():
                    self.session.store.runs.write(self.describe("running"))
            pause = max(every, 20 * (time.monotonic() - began))  # of a large zoo, it takes a while

    def _warn_of_namesakes(self, record: RunRecord) -> None:
        """Warns if another zoo in the store has the name of this one."""
        if not record.zoo_file:
            return
        with suppress(StoreError, OSError):
            for other in self.session.store.runs.namesakes(record):
                if self._is_another_zoo(record, other):
                    _log.warning(
                        "%s and %s (on %s) are both named %r, so they share runs, history and what `gc --keep-last` "
                        "keeps in this store; give one of them another name: `name: ...` in the zoo file",
                        record.zoo_file,
                        other.zoo_file,
                        other.host,
                        self.session.zoo,
                    )
                    return

    def _is_another_zoo(self, record: RunRecord, other: RunRecord) -> bool:
        """Whether `other` is a run of another zoo in this store, and not in a store that this one is a copy of.

        Checkouts of this zoo on other machines, or that have been removed since, are not other zoos.
        """
        if other.host == platform.node():
            file, copied = Path(other.zoo_file), other.parameters.get("store") != record.parameters.get("store")
            return not copied and file.is_file() and not file.samefile(record.zoo_file)
        models = {*other.models, *other.files}
        return bool(models) and models.isdisjoint(self.session.loaded.zoo.models)

    def describe(self, status: RunStatus) -> RunRecord:
        """The run's current record."""
        session, progress = self.session, self.session.progress
        unfinished = {name: tuple(stages.values()) for name, stages in list(progress.unfinished.items())}
        return RunRecord(
            **session.identity,
            pid=os.getpid(),
            seconds=time.monotonic() - progress.start,
            models=unfinished | {name: outcome.stages for name, outcome in list(progress.outcomes.items())},
            status=status,
            parameters=session.request.parameters(),
            files={
                model.model: {recipe.recipe: recipe.to_json() for recipe in model.recipes}
                for model in progress.outcome().models
            },
            release=self.release,
            url=session.prefect.url,
            part_of=session.part_of or "",
        )

    def find_attempt(self) -> None:
        """Reads the record of the run's last attempt, if the store has one."""
        with suppress(StoreError):
            self.attempted = self.session.store.runs.find(self.session.id)

    def cancelled(self, model: str, recipe: str) -> Delivered | None:
        """What the run's last attempt says of a recipe that was cancelled by hand: it waits for the next run."""
        there = Delivered.of_run(self.attempted, model, recipe) if self.attempted else None
        return there if there and there.failure and there.failure.cancelled else None

    def publish(self) -> Published | None:
        """Releases the files if the run should and made all; raises as `Releases.publish`. Later calls do the same."""
        publication = self.session.publication
        if publication and not self._tried_to_publish:
            self._tried_to_publish = True
            try:
                recipes = [*self.session.progress.outcome().recipes]
                self._published = publication.publish_results(recipes, self.describe("completed"))
                self.release = publication.outcome(self._published)
            except PteforgeError as error:
                self._published, self.release = error, publication.failed(first_line(error))
        if isinstance(self._published, PteforgeError):
            raise self._published
        return self._published

    def _write_page(self, record: RunRecord) -> None:
        """Writes the page about the run next to its files, if it makes files; warns if that fails."""
        session = self.session
        if not session.progress.outcomes or session.request.until or (session.part_of and session.request.toolchain):
            return
        try:
            from ..reports.page import NAME, write_page  # noqa: PLC0415 - imports that only runs need

            write_page(record, session.store.runs, session.out)
            self.page = session.out / NAME
        except Exception as error:  # noqa: BLE001 - the files are made, whatever is wrong with the page
            _log.warning("the page about the run is not written: %s: %s", type(error).__name__, first_line(error))

    @cached_property
    def previous(self) -> RunRecord | None:
        """The zoo's last run before this one, completed from earlier runs; None if none can be read."""
        from ..reports.changes import runs_before, with_the_rest  # noqa: PLC0415 - an import that only runs need

        with suppress(StoreError, StopIteration):
            earlier = runs_before(self.session.id, self.session.zoo, self.session.store.runs)
            return with_the_rest(next(earlier), earlier)
        return None
