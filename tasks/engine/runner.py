"""The seam between the lowering and where its stages run: a call of a stage as a value, and what answers it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, TypeVar, overload

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationInfo

from ...artifacts.digest import Digest
from ...artifacts.ref import ArtifactRef
from ...artifacts.store import Store
from ...configs.model import Limits
from ...configs.sources import BuilderSource, ResolvedSource
from .keys.code import StageKey
from .stage import UNKNOWN_DIGEST, Params, Stage, find_stage, from_roles, is_known, unknown_roles

if TYPE_CHECKING:
    from .executor import Executor

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class StageId:
    """Which call of a stage of a model, for people and for the ledger's slots."""

    stage: str
    method: str = ""  # the method that it is for; empty where it is for all, or for the model's first one in `export`
    recipe: str = ""  # the recipe that it is for; empty where it is for all
    payload: str = ""  # the payload that it is for; empty where it is for all, or the recipe has one only
    attempt: int = 0  # which of the files that are only tried it is for, from 1 on; 0 for the one that is published

    @property
    def part(self) -> str:
        """The name within its recipe, such as ``edge/forward`` or, in a fat file, ``compile.vulkan``."""
        return self._named("")

    def __str__(self) -> str:
        """The name within its model, such as ``edge/forward/xnnpack-fp32``."""
        return self._named(self.recipe)

    def slot(self, model: str) -> str:
        """The name under which the ledger remembers the last key of this call of a model."""
        return f"{model}/{self}"

    def _named(self, recipe: str) -> str:
        name = "/".join(filter(None, (self.stage, self.method, recipe)))
        name += f".{self.payload}" if self.payload else ""
        return f"{name}#{self.attempt}" if self.attempt else name


@dataclass(frozen=True, slots=True)
class UserCode:
    """The user's code that a stage runs, so that its key can be made again once the stage has seen what that loads."""

    watch_name: str  # name of the list of what to watch in the ledger
    source: ResolvedSource  # the model's
    # further functions that the stage's params have digests of, in their order
    callables: tuple[BuilderSource, ...] = ()


def _params(value: Any, call: ValidationInfo) -> Params:
    stage: type[Stage] = call.data["stage"]
    return stage.Params.model_validate(value)


@dataclass(frozen=True, slots=True)
class StageCall:
    """One execution of a stage as a value: all that a process on any machine needs, besides store and user's code."""

    model: str
    id: StageId  # which call of the model's
    stage: Annotated[type[Stage], PlainValidator(find_stage), PlainSerializer(lambda stage: stage.name)]
    # of the class `stage.Params`
    params: Annotated[Any, PlainValidator(_params), PlainSerializer(lambda params: params.model_dump(mode="json"))]
    inputs: Mapping[str, ArtifactRef]
    limits: Limits
    folder: Path  # see `Workspace`
    python_path: tuple[Path, ...] = ()  # see `Workspace`
    program_file: Path | None = None  # see `Workspace`
    user_code: UserCode | None = None  # for stages whose keys watch what the user's code loads and reads
    recipes: tuple[str, ...] = ()  # those that need it
    circumstances: tuple[str, ...] = field(default=(), compare=False)  # that causes of its failure depend on
    # when it could run, in seconds since the epoch; 0 if that is when it does
    submitted: float = field(default=0.0, compare=False)

    @property
    def title(self) -> str:
        return f"{self.model} {self.id}"

    @property
    def slot(self) -> str:
        return self.id.slot(self.model)


if TYPE_CHECKING:
    _Key = StageKey
else:  # pydantic cannot take its params, which are of a recursive type
    _Key = Annotated[Any, PlainValidator(lambda fields: StageKey(**fields)), PlainSerializer(lambda key: key.fields())]


@dataclass(frozen=True, slots=True)
class Done:
    """A finished stage."""

    call: StageCall  # what was asked, with the params that the key has
    key: _Key
    roles: Mapping[str, ArtifactRef]
    cached: bool
    seconds: float = 0.0  # how long the stage ran, now or when it was made
    peak_memory: int = 0  # bytes its process used beyond the worker server's own, now or when it was made
    predicted_memory: int = 0  # bytes that it waited for before it ran now; 0 if it did not
    queued: float = 0.0  # seconds that it waited before it ran now
    reason: str = ""  # why it ran although its key may have been in the ledger; empty where that does not happen

    @property
    def outputs(self) -> Any:
        """The artifacts, as the stage's `Outputs`."""
        return from_roles(self.call.stage.Outputs, self.roles)

    def encode(self) -> bytes:
        return _DONE.dump_json(self)

    @classmethod
    def decode(cls, content: bytes) -> Done:
        return _DONE.validate_json(content)


_DONE = TypeAdapter(Done)


class NotCached(Exception):
    """The ledger does not have this stage: raised instead of running it."""


class CutShort(Exception):
    """Everything up to the stage that was asked for is done."""


class Runner(Protocol):
    """Answers calls of stages. The whole seam."""

    @property
    def store(self) -> Store: ...

    async def __call__(self, call: StageCall) -> Done:
        """Finds the result of a stage, or makes it.

        Raises:
            StageError: the stage failed.
            StoreError: an input is gone or damaged, or the store cannot be used.
            NotCached: it is not in the ledger, and this runner runs nothing.
        """
        ...


@dataclass(eq=False)
class EngineRunner:
    """Base of the runners here, which all answer with one engine that looks stages up and runs them."""

    engine: Executor

    @property
    def store(self) -> Store:
        return self.engine.store


class LedgerRunner(EngineRunner):
    """Finds, and never runs: raises NotCached at the first stage that would have to run. Needs no event loop."""

    async def __call__(self, call: StageCall) -> Done:
        if found := self.engine.find(call):
            return found
        raise NotCached(call.title)


@dataclass
class PlanRunner(EngineRunner):
    """Finds what the ledger has; in place of what it does not have, goes on with outputs that are not known yet."""

    # by stage key, calls that are not in the ledger, although all their inputs are known
    will_run: dict[Digest, StageCall] = field(default_factory=dict)
    # calls with inputs from what will run. Early cutoff may spare them.
    may_run: list[StageCall] = field(default_factory=list)
    found: list[Done] = field(default_factory=list)  # results that the ledger has

    @property
    def slots(self) -> dict[str, str]:
        """Slots of all calls, with the stage of each."""
        calls = (*(done.call for done in self.found), *self.will_run.values(), *self.may_run)
        return {call.slot: call.stage.name for call in calls}

    async def __call__(self, call: StageCall) -> Done:
        if not all(map(is_known, call.inputs.values())):
            self.may_run.append(call)
        elif found := self.engine.find(call):
            self.found.append(found)
            return found
        else:
            self.will_run.setdefault(self.engine.key(call).digest(), call)
        unknown = StageKey(call.stage.name, UNKNOWN_DIGEST, {}, {}, {})
        return Done(call, unknown, unknown_roles(call.stage.Outputs), cached=False)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A result without what its caller has already: a run may keep thousands."""

    # of the fields of `Done`. Call and key are among them if the stage was recorded under another key.
    values: Mapping[str, Any]

    @classmethod
    def of(cls, done: Done, asked: Digest) -> Self:
        """What to keep of a result that was asked by this key."""
        known = ("call", "key") if done.key.digest() == asked else ()
        return cls({part.name: getattr(done, part.name) for part in fields(done) if part.name not in known})

    def answer(self, call: StageCall, key: StageKey) -> Done:
        return Done(**{"call": call, "key": key, **self.values})


class SharingRunner(EngineRunner):
    """Equal calls of one run are one call, whichever recipes and models they come from. Base of runners that run."""

    def __init__(self, engine: Executor) -> None:
        super().__init__(engine)
        self._calls: dict[Digest, asyncio.Task[Done]] = {}  # those that have not ended well
        self._done: dict[Digest, _Kept] = {}
        self._ran: dict[Digest, _Kept] = {}  # what ran before it was forgotten

    async def __call__(self, call: StageCall) -> Done:
        """Joins a call with an equal key that is running or done, or runs it."""
        key = self.engine.key(call)
        digest = key.digest()
        if digest not in self._done:
            task = self._calls.get(digest)
            if task is None:
                task = self._calls[digest] = asyncio.create_task(self.run(call))
            self._done[digest] = _Kept.of(await asyncio.shield(task), digest)
            self._calls.pop(digest, None)  # with it goes what its context holds
        done = self._done[digest].answer(call, key)
        if done.cached and digest in self._ran:  # it is cached since this run made it
            return replace(self._ran[digest].answer(call, key), roles=done.roles)
        return done

    def forget_finished(self) -> None:
        """Asks the ledger again from now on, since something that was made is gone."""
        self._calls = {key: task for key, task in self._calls.items() if not task.done()}
        self._ran |= {key: kept for key, kept in self._done.items() if not kept.values["cached"]}
        self._done = {}

    async def run(self, call: StageCall) -> Done:
        """Finds or makes the result of a call that nobody else asked for yet."""
        raise NotImplementedError


class DepthFirst:
    """Places for calls at once. Of those that wait, the ones of the model that was begun first are next.

    So the first files are there early, and a run that is stopped has made some.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._ranks: dict[str, int] = {}  # by model, in the order of their first calls
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = itertools.count()

    @asynccontextmanager
    async def place(self, model: str) -> AsyncIterator[None]:
        """Waits for a place, and frees it at the end."""
        rank = self._ranks.setdefault(model, len(self._ranks))
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (rank, next(self._count), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it had just been given the place
                    self._give()
                raise
        try:
            yield
        finally:
            self._give()

    def _give(self) -> None:
        """Passes a place on to the next one that still waits."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class LocalRunner(SharingRunner):
    """Runs stages on this machine, from threads of its own."""

    def __init__(self, engine: Executor, threads: int, observer: Observer | None = None) -> None:
        super().__init__(engine)
        self._observer = observer or Observer()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stages")
        self._places = DepthFirst(threads)

    async def run(self, call: StageCall) -> Done:
        loop = asyncio.get_running_loop()
        async with self._places.place(call.model):
            return await loop.run_in_executor(self._pool, self.engine.run, call, self._observer)


class Observer:
    """Hears what happens in a run, from any thread; this one ignores it."""

    def started(self, call: StageCall) -> None:
        """A stage begins to run."""

    def progressed(self, call: StageCall, done: int, total: int | None) -> None:
        """A stage has taken so many samples of so many."""

    def finished(self, done: Done) -> None:
        """A stage was run or found."""

    def failed(self, call: StageCall, error: Exception) -> None:
        """A stage failed."""


@overload
async def together(
    calls: Mapping[str, Awaitable[T]], *, into: dict[str, T] | None = None, return_exceptions: Literal[False] = False
) -> dict[str, T]: ...
@overload
async def together(
    calls: Mapping[str, Awaitable[T]], *, return_exceptions: Literal[True]
) -> dict[str, T | Exception]: ...
async def together(
    calls: Mapping[str, Awaitable[T]], *, into: dict[str, T] | None = None, return_exceptions: bool = False
) -> Any:
    """All results, by name; raises the first failure, but only when all have come to their end.

    With `return_exceptions`, what was raised is among the results, as for `asyncio.gather`. The results of calls that
    did not fail are also added to `into`, whatever is raised.
    """
    outcomes: dict[str, Any] = {}
    if len(calls) < 2 or _one_by_one.get():
        for name, call in calls.items():
            try:
                outcomes[name] = await call
            except Exception as error:  # noqa: BLE001 - the caller decides what a failure means
                outcomes[name] = error
    else:
        outcomes = dict(zip(calls, await asyncio.gather(*calls.values(), return_exceptions=True), strict=True))
    for outcome in outcomes.values():
        if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
            raise outcome
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Exception)]
    if into is not None:
        into |= {name: outcome for name, outcome in outcomes.items() if not isinstance(outcome, Exception)}
    if failures and not return_exceptions:
        raise first_of(failures)
    return outcomes


def first_of(failures: list[Exception]) -> Exception:
    """The failure to raise where there are several: a real one rather than that a run was cut short."""
    return next((failure for failure in failures if not isinstance(failure, CutShort)), failures[0])


def run_without_loop(lowering: Coroutine[Any, Any, T]) -> T:
    """Runs a lowering whose runner never waits (`LedgerRunner`, `PlanRunner`, `LiveRunner`) in this thread.

    Works in a notebook, too, whose own event loop is running.
    """
    token = _one_by_one.set(True)
    try:
        lowering.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        _one_by_one.reset(token)
    raise RuntimeError("a runner that must not wait did")


_one_by_one: ContextVar[bool] = ContextVar("one_by_one", default=False)
"""Set while a lowering runs in one thread, so that its branches run one after another."""
