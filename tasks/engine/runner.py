"""The seam between the lowering and where its stages run: a call as a value, and what answers it (see `executor`)."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationInfo

from ...artifacts.ref import ArtifactRef
from ...artifacts.store import Store
from ...configs.model import Limits
from ...configs.sources import BuilderSource, ResolvedSource
from .keys.code import StageKey
from .stage import Params, Stage, find_stage, from_roles


@dataclass(frozen=True, slots=True, order=True)
class StageId:
    """Which call of a stage of a model, for people and for the ledger's slots. Empty fields stand for all."""

    stage: str
    method: str = ""  # also empty for the model's first one in `export`
    recipe: str = ""
    payload: str = ""  # also empty where the recipe has only one
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
    """The user's code that a stage runs: its key is made again when the stage has seen what that code loads."""

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
    remarks: tuple[str, ...] = ()  # what else is to be known of how it ran now

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

        Raises StageError if the stage failed, StoreError if an input is gone or damaged or the store cannot be used,
        and NotCached if it is not in the ledger and this runner runs nothing.
        """
        ...


class DepthFirst:
    """Bounds how many calls run at once. The model that began first goes first, so that its files are there early."""

    def __init__(self, calls: int) -> None:
        self._free = calls
        self._ranks: dict[str, int] = {}  # by model, in the order of their first calls
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = itertools.count()

    @asynccontextmanager
    async def turn(self, model: str) -> AsyncIterator[None]:
        """Waits for the turn of a model's call, and passes it on at the end."""
        rank = self._ranks.setdefault(model, len(self._ranks))
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (rank, next(self._count), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it was this call's turn just now
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Lets the next call run that still waits."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Observer:
    """Is called when a stage begins, processes samples, finishes or fails, from any thread; subclasses do something."""

    def started(self, call: StageCall) -> None: ...

    def progressed(self, call: StageCall, done: int, total: int | None) -> None: ...

    def finished(self, done: Done) -> None: ...

    def failed(self, call: StageCall, error: Exception) -> None: ...
