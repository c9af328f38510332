"""Stages as Prefect tasks. Tasks take values only, so that any of Prefect's task runners can run them."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

from prefect import get_client, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse
from prefect.context import FlowRunContext, TaskRunContext
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.transactions import Transaction
from pydantic import TypeAdapter

from ...artifacts.digest import Digest
from ...artifacts.ref import ArtifactRef
from ...artifacts.runs import differing_fields
from ...artifacts.store import open_store
from ...errors import PteforgeError, StageError, StageFailed, StoreError, StoreUnusable, first_line, printable
from ...tasks.engine.executor import Executor, SharingRunner
from ...tasks.engine.keys.code import StageKey
from ...tasks.engine.keys.loaded import changed_files
from ...tasks.engine.runner import DepthFirst, Done, Observer, StageCall
from ...tasks.engine.stage import Progressed
from ...tasks.engine.workers import Workers
from ...tasks.programs.binding import graph_of
from ...tasks.results.tables import format_size
from ..run.progress import Throttle, samples_done
from ..run.session import Session, stage_memory

_LIMITS_FOR = 30.0  # seconds until the server's concurrency limits are read again
_TAG_LIMIT = "tag:stage:"  # Prefect's prefix of limits on tags of stages
_PAGE = 200


@dataclass(frozen=True)
class Site:
    """What stage tasks share, as a value: each process that runs them opens its own executor for it."""

    store: str
    jobs: int
    memory: int | None  # see `Workers`
    run: str  # id of the driver's run
    refresh: str = ""  # see `Executor`
    server: str | None = None  # address of the driver's worker server, for processes of its machine


_runs: dict[tuple[str, int], PrefectRunner | None] = {}
"""This process's runs, by id; None for those that have ended. By process, too: one that was forked must not use its
parent's. Parameters of flows and tasks are values: Prefect sends those of the flow, and of the task around, along with
each submitted task."""
_executors: dict[tuple[Site, int], Executor] = {}  # for runs of other processes: by site without the run, and process
_opening = threading.Lock()


def runner_of(run: str) -> PrefectRunner | None:
    """The runner of a run of this process."""
    return _runs.get((run, os.getpid()))


def _executor(site: Site) -> Executor:
    """This process's executor for runs of other processes, opened at the first call; its workers end with it."""
    key = replace(site, run="", refresh=""), os.getpid()
    with _opening:
        if key not in _executors:
            workers = Workers(jobs=site.jobs, memory=site.memory, address=site.server)
            atexit.register(workers.stop)
            _executors[key] = Executor(open_store(site.store), workers)
        executor = copy(_executors[key])
        executor.refresh = site.refresh
        return executor


def _worth_retrying(task: Any, run: TaskRun, state: State[Any]) -> bool:
    """A store that was out of reach may be back; a stage that failed fails again."""
    del task, run
    try:
        state.result()
    except Exception as error:  # noqa: BLE001 - for anything else, trying again does not help
        return isinstance(error, StoreUnusable)
    return False


@dataclass(frozen=True, slots=True)
class TaskWork:
    """The input of a stage's task."""

    call: StageCall
    site: Site
    key: Digest  # the call's key on the driver
    code: Digest  # a field of the key that depends on the machine, as do `versions`
    versions: Mapping[str, str]
    found: bool  # whether the driver's ledger had the result

    def check(self, here: StageKey) -> None:
        """Raises StageFailed if this process has another key for the call, so that it would do something else."""
        if here.digest() == self.key:
            return
        differing = [
            f"{change.field}: {change.before} there, {change.after} here"
            for change in differing_fields(self.versions, here.versions)
        ]
        if here.code != self.code:
            differing.append(f"pteforge's code of stage {here.stage!r}")
        outdated = "restart this worker, which is older than the code on its disk" if changed_files() else ""
        raise StageFailed(
            "this worker cannot run the driver's stage: its stage key differs "
            f"({'; '.join(differing) or 'the zoo or its modules differ'}); "
            f"{outdated or 'install the same versions on both'}"
        )


_WORK = TypeAdapter(TaskWork)


def run_stage_call(title: str, work: bytes) -> Any:
    """Runs one stage, unless the ledger has it; a hit ends in the state `Cached`, as Prefect's own cache hits do.

    `work` is an encoded `TaskWork`, since Prefect and Dask inspect every type but bytes. Returns a state whose result
    is an encoded `Done`, or True if the driver has that. Raises StageFailed if the driver's code or toolchain differs.
    """
    del title
    task_work = _WORK.validate_json(work)
    call, site = task_work.call, task_work.site
    add_tags(f"stage:{call.stage.name}", f"model:{call.model}", *(f"recipe:{recipe}" for recipe in call.recipes))
    if task_work.found:
        return Completed(name="Cached", message=f"found by stage key {task_work.key}", data=True)
    runner = runner_of(site.run)
    if not runner and (site.run, os.getpid()) in _runs:
        return Cancelled(message="the run has ended")
    executor = runner.session.executor if runner else _executor(site)
    try:
        task_work.check(executor.key(call))
        done = executor.run(call, runner.session.progress if runner else Observer(), _log_sometimes())
    except StoreUnusable:
        raise  # it may be back: Prefect tries again
    except PteforgeError as error:
        if runner and runner.session.progress.aborted:
            return Cancelled(message="the run was cancelled")
        return _failed(error)
    if done.cached:
        return Completed(name="Cached", message=f"found by stage key {done.key.digest()}", data=done.encode())
    local = executor.store.local
    size = sum(blob.size for blob in {blob for ref in done.roles.values() for blob in local.objects_of(ref)})
    message = f"ran {done.seconds:.1f} s, peak memory {format_size(done.peak_memory)}, outputs {format_size(size)}"
    return Completed(message=printable(f"{message}; {done.reason}") if done.reason else message, data=done.encode())


def _failed(error: PteforgeError) -> State[Any]:
    """A failed state with one line of message; the rest, and the end of the stage's log, go to the run's log."""
    message = first_line(error)
    logged = [str(error)] if str(error) != message else []
    if isinstance(error, StageError) and error.log_tail:
        logged.append(error.log_tail)
    if logged:
        get_run_logger().error("%s", "\n".join(logged))
    return Failed(message=message, data=error)


# The task has another name than its body, so that pickles name the body and do not carry it with its module's locks.
stage_task = task(
    name="stage",
    task_run_name="{title}",
    cache_policy=NO_CACHE,  # the ledger decides: unlike Prefect's cache it knows when an output is gone or damaged
    persist_result=False,
    retries=2,
    retry_delay_seconds=[1, 5],
    retry_condition_fn=_worth_retrying,
    log_prints=False,
)(run_stage_call)


class PrefectRunner(SharingRunner):
    """Submits stages to the task runner of the current flow, or of a cluster, as many as can run at once.

    Cached stages, and those that cost less than sending them, stay with the flow. While its context is open, tasks in
    this process find it by its run's id, and use its session's executor.
    """

    def __init__(self, session: Session, cluster: Any = None) -> None:
        super().__init__(session.executor)
        self.session = session
        flow_run = FlowRunContext.get()
        assert flow_run  # noqa: S101 - made in a flow
        self._flow_tasks: Any = flow_run.task_runner
        self._stage_tasks = cluster or self._flow_tasks
        # states by id of results, which Prefect keeps to find dependencies: here, `_makers` has them
        self._linked = flow_run.run_results
        memory, workers = stage_memory(session.run_config), session.workers
        refresh = session.executor.refresh
        self._site = Site(session.store.url, workers.jobs, memory, session.id, refresh, workers.address)
        self._slots = DepthFirst(session.submitted_at_once)
        self._limits = _StageLimits()
        # how the task that made an artifact ended, for the edges of the graph in the UI
        self._makers: dict[ArtifactRef, State[Any]] = {}

    def __enter__(self) -> Self:
        _runs[self._site.run, os.getpid()] = self
        return self

    def __exit__(self, *_: object) -> None:
        _runs[self._site.run, os.getpid()] = None

    async def run(self, call: StageCall) -> Done:
        """Submits the stage as a task; without Prefect, once that has failed, runs it here."""
        # The transaction of the model's task is async: a failing sync task cannot roll it back. It would also keep all
        # that belongs to each stage's task until the model is done.
        Transaction.__var__.set(None)  # type: ignore[arg-type]  # what its own `get` has for none
        async with nullcontext() if self.session.executor.awaited(call) else self._slots.turn(call.model):
            if not self.session.prefect.lost:
                with self.session.prefect.optional():  # a failure of ours happens again below
                    found = await asyncio.to_thread(self.engine.find, call)  # so that hits wait for no limit
                    future, here = await self._submit(call, found)
                    try:
                        await _ended(future)
                        result = await asyncio.to_thread(future.result)
                    except PteforgeError as error:
                        if not here:  # else the task has reported it
                            self.session.progress.failed(call, error)
                        raise
                    done = found or Done.decode(result)
                    if found or not here:
                        self.session.progress.finished(done)
                    self._remember(done, future.state)
                    return done
            return await asyncio.to_thread(self.engine.run, call, self.session.progress)

    async def _submit(self, call: StageCall, found: Done | None) -> tuple[Any, bool]:
        """The future of the stage's task, and whether that runs in this process."""
        key = found.key if found else await asyncio.to_thread(self.engine.key, call)
        work = _WORK.dump_json(TaskWork(call, self._site, key.digest(), key.code, key.versions, bool(found)))
        tasks = self._flow_tasks if found or not call.stage.runs_isolated(call.params) else self._stage_tasks
        here = isinstance(tasks, ThreadPoolTaskRunner)
        if not found and not here:
            await asyncio.to_thread(self._publish_bound, call)
        names = [name for ref in call.inputs.values() for name in self._names(ref)]
        makers: dict[Any, Any] = {state.id: state for name in names if (state := self._makers.get(name))}
        limited = not found and await self._limits.cover(call.stage.name)
        parameters = {"title": call.title, "work": work}
        return tasks.submit(_named(call.stage.name, limited=limited), parameters, wait_for=list(makers.values())), here

    def _remember(self, done: Done, state: State[Any]) -> None:
        """Keeps the end of the task that made artifacts."""
        ended = state.model_copy(update={"data": True})  # its result is kept nowhere else
        self._linked.clear()
        self._makers |= dict.fromkeys((name for ref in done.roles.values() for name in self._names(ref)), ended)

    def _publish_bound(self, call: StageCall) -> None:
        """Publishes the manifests of programs that were bound to their weights here, for other machines."""
        for ref in call.inputs.values():
            if ref.composite and ref.kind.startswith("program/"):
                self.store.publish(ArtifactRef(ref.kind, ref.root, ref.root.digest))

    def _names(self, ref: ArtifactRef) -> Iterator[ArtifactRef]:
        """An artifact, and the graph of a program: stages may take or make that instead."""
        yield ref
        if ref.composite and ref.kind.startswith("program/"):
            with suppress(StoreError):  # stages that need it raise this again
                if graph := graph_of(ref, self.store):
                    yield graph


class _StageLimits:
    """The stages whose tag has a concurrency limit on the server."""

    def __init__(self) -> None:
        self._stages: frozenset[str] = frozenset()
        self._read = -math.inf
        self._reading = asyncio.Lock()

    async def cover(self, stage: str) -> bool:
        async with self._reading:
            if time.monotonic() - self._read > _LIMITS_FOR:
                self._stages = await _limited_stages()
                self._read = time.monotonic()
        return stage in self._stages


async def _limited_stages() -> frozenset[str]:
    limits: list[GlobalConcurrencyLimitResponse] = []
    async with get_client() as client:
        while page := await client.read_global_concurrency_limits(limit=_PAGE, offset=len(limits)):
            limits += page
    names = (limit.name for limit in limits if limit.active)
    return frozenset(name.removeprefix(_TAG_LIMIT) for name in names if name.startswith(_TAG_LIMIT))


@cache
def _named(stage: str, *, limited: bool) -> Any:
    """The task for a stage. With the tag from the start, it waits for a slot of the tag's concurrency limit.

    Prefect asks for a slot even without a limit, in a transaction that other writers to its database delay for seconds.
    """
    return stage_task.with_options(name=stage, tags=[f"stage:{stage}"] if limited else [])


def _ended(future: Any) -> asyncio.Future[None]:
    """The end of a Prefect future, for the event loop to wait for."""
    loop = asyncio.get_running_loop()
    finished = loop.create_future()

    def resolve() -> None:
        if not finished.done():  # else it was cancelled
            finished.set_result(None)

    def finish(_future: Any) -> None:
        loop.call_soon_threadsafe(resolve)

    future.add_done_callback(finish)
    return finished


def _log_sometimes() -> Progressed:
    """Logs for the current task run how far a long stage is."""
    throttle = Throttle()

    def log(done: int, total: int | None) -> None:
        if throttle.due():
            get_run_logger().info(samples_done(done, total))

    return log


def add_tags(*tags: str) -> None:
    """Tags the current task run from now on.

    Before a run starts, Prefect asks its server for limits on the run's tags, with a new client for each set of tags:
    with model and recipe among them, one for each stage call. People only need limits on stages (``stage:compile``).
    """
    if context := TaskRunContext.get():
        context.task_run.tags.extend(tag for tag in tags if tag not in context.task_run.tags)
