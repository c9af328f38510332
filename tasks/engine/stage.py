"""The stage contract: named input artifacts and frozen parameters in, named output artifacts out."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Protocol, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict

from ...artifacts.digest import Digest
from ...artifacts.local_store import LocalStore
from ...artifacts.ref import ArtifactRef, BlobRef
from .kinds import Kind

_log = logging.getLogger(__name__)


class Plugin(Protocol):
    """An extension that parameters may name and others may install, such as a target."""

    distributions: ClassVar[tuple[str, ...]]  # packages whose versions the outputs depend on

    @classmethod
    def versions(cls) -> Mapping[str, str]:
        """Versions of anything else that the outputs depend on, by name."""
        ...


class Params(BaseModel):
    """What a stage reads besides its input artifacts. All of it enters the stage key, so nothing names a machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def plugins(self) -> tuple[type[Plugin], ...]:
        """Classes whose modules take part in what the stage does, and so enter the key."""
        return ()


class CallableParams(Params):
    """One call of a user's function."""

    source: dict[str, Any]  # its key fields (see `keys.source`): name, code digests, versions, arguments, files


Progressed = Callable[[int, int | None], None]
"""Called with the number of samples that are done, and how many there are (None: unknown)."""


def no_progress(_done: int, _total: int | None) -> None:
    """The null observer."""


reporter: ContextVar[Progressed] = ContextVar("reporter", default=no_progress)
"""The observer of the stage that runs in this context: set by the worker process, or by the caller of the stage."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """What a stage's body may touch."""

    store: LocalStore  # where inputs are read and outputs are put
    scratch: Path  # an empty folder, removed after the stage
    folder: Path  # the zoo file's folder, in which a model's builder runs
    python_path: tuple[Path, ...] = ()  # folders that come first on ``sys.path``: the zoo's
    program_file: Path | None = None  # the `.pt2` file of a model that comes as one
    progressed: Progressed = no_progress  # called after each sample, by stages that take many
    declared: tuple[Path, ...] = ()  # files that the user's code may read since keys have them
    unfinished: Path | None = None  # a folder that outlives an interrupted stage: see `LocalStore.unfinished`
    remarked: Callable[[str], None] = _log.info  # called with what `why` says of this run of the stage


@dataclass(frozen=True, slots=True)
class RoleField:
    """The meaning of a field's annotation in `Roles`."""

    kind: Kind  # the kinds of artifacts that it admits
    required: bool
    mapping: bool  # whether it stands for several roles

    @classmethod
    def of(cls, name: str, hint: Any) -> RoleField:
        """Reads an annotation; raises TypeError where it is none of those that `Roles` lists."""
        optional, mapping = get_origin(hint) in (Union, UnionType), get_origin(hint) is Mapping
        if optional:
            (hint,) = (member for member in get_args(hint) if member is not NoneType)
        elif mapping:
            _, hint = get_args(hint)
        kinds = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Kind)]
        if len(kinds) != 1:
            raise TypeError(f"{name} must be annotated with one of the kinds in tasks.engine.kinds, not with {hint}")
        return cls(kinds[0], not (optional or mapping), mapping)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Roles:
    """Base of the inputs and outputs of stages: subclasses are frozen, keyword-only dataclasses of artifacts.

    The annotation of a field, made of the kinds in `tasks.engine.kinds`, says which roles it stands for:

    - ``program: kinds.EdgeProgram``: the role ``program``;
    - ``data: kinds.PtdFile | None = None``: the role ``data``, which may be absent;
    - ``state: Mapping[str, kinds.State]``: the roles ``state/<key>``; the key ``""`` is the bare role ``state``.
    """

    role_fields: ClassVar[Mapping[str, RoleField]]  # what each field's annotation says

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        hints = get_type_hints(cls, include_extras=True)
        names = [role.name for role in fields(cls)]  # type: ignore[arg-type]  # a dataclass since two lines above
        cls.role_fields = {name: RoleField.of(f"{cls.__qualname__}.{name}", hints[name]) for name in names}


_R = TypeVar("_R", bound=Roles)


def to_roles(value: Roles) -> dict[str, ArtifactRef]:
    return {role: ref for name in value.role_fields for role, ref in _roles_of(name, getattr(value, name))}


def _roles_of(name: str, value: ArtifactRef | Mapping[str, ArtifactRef] | None) -> Iterator[tuple[str, ArtifactRef]]:
    if isinstance(value, ArtifactRef):
        yield name, value
    elif value is not None:
        yield from ((f"{name}/{key}" if key else name, ref) for key, ref in value.items())


def from_roles(cls: type[_R], roles: Mapping[str, ArtifactRef]) -> _R:
    """The inverse of `to_roles`, with sorted mappings; ValueError for unknown, missing or unfitting roles."""
    role_fields, qualname = cls.role_fields, cls.__qualname__
    values: dict[str, Any] = {name: {} for name, role_field in role_fields.items() if role_field.mapping}
    for role, ref in sorted(roles.items()):
        name, _, key = role.partition("/")
        role_field = role_fields.get(name)
        if role_field is None or (key and not role_field.mapping):
            raise ValueError(f"{qualname} has no role {role!r}; its fields: {', '.join(role_fields) or 'none'}")
        if ref.kind not in role_field.kind.names:
            admitted = " or ".join(role_field.kind.names)
            raise ValueError(f"{qualname}: {role!r} is of kind {ref.kind!r}, and must be of {admitted}")
        if role_field.mapping:
            values[name][key] = ref
        else:
            values[name] = ref
    if missing := [name for name, role_field in role_fields.items() if role_field.required and name not in values]:
        raise ValueError(f"{qualname} lacks the roles {', '.join(missing)}; it has {', '.join(roles) or 'none'}")
    return cls(**values)


UNKNOWN_DIGEST = Digest("0" * 64)  # identity of an output that a plan does not know yet


def is_known(ref: ArtifactRef) -> bool:
    """Whether an output is there, or only planned."""
    return ref.identity != UNKNOWN_DIGEST


def unknown_roles(cls: type[Roles]) -> dict[str, ArtifactRef]:
    """Role to an unknown artifact, for every output that a stage may have."""
    return {
        name: ArtifactRef(role_field.kind.names[0], BlobRef(UNKNOWN_DIGEST, 0), UNKNOWN_DIGEST)
        for name, role_field in cls.role_fields.items()
    }


_AnyParams = Params  # within `Stage`, the name means the stage's own


class Stage:
    """One step of the lowering: pure, so that its outputs can be found again by key.

    A subclass is one file in a folder `stages` below `tasks`, and has a name of its own
    (``class Edge(Stage, name="edge")``), the nested classes `Params`, `Inputs` and `Outputs`, and a body that reads its
    inputs and its params and nothing else.
    """

    name: ClassVar[str]  # unique; enters keys, the ledger and messages
    # The body runs in a worker process. Otherwise it needs neither torch nor ExecuTorch, and runs where it is called.
    isolated: ClassVar[bool] = True
    alone: ClassVar[bool] = False  # no other stage runs at the same time in these workers, since time is measured
    ends_chain: ClassVar[bool] = False  # no stage follows that shares a process with this one
    reads_traces: ClassVar[bool] = False  # outputs include stack traces, which a program's identity excludes
    # packages whose versions the outputs depend on, besides those of targets
    distributions: ClassVar[tuple[str, ...]] = ("torch", "executorch", "torchao")
    Params: ClassVar[type[_AnyParams]]
    Inputs: ClassVar[type[Roles]]
    Outputs: ClassVar[type[Roles]]

    def __init_subclass__(cls, *, name: str) -> None:
        cls.name = name

    # Parameters of a stage's own type are `Any` here, since a subclass takes its own only.

    @classmethod
    def runs_isolated(cls, params: Any) -> bool:  # noqa: ARG003 - for those that do it with some params only
        """Whether the body runs in a worker process, given the stage's params."""
        return cls.isolated

    @classmethod
    def shares_process(cls, params: Any) -> bool:  # noqa: ARG003 - as above
        """Whether the body may run in a process after other stages of its payload: it runs no code of users."""
        return False

    @classmethod
    def versions_of(cls, params: Any) -> tuple[str, ...]:  # noqa: ARG003 - as above
        """Packages whose versions the outputs depend on, given the stage's params."""
        return cls.distributions

    @classmethod
    def input_digest(cls, params: Any, ref: ArtifactRef) -> Digest:  # noqa: ARG003 - as above
        """The digest of an input in the key: its identity, or the stored bytes for stages that read more than that."""
        return ref.root.digest if cls.reads_traces else ref.identity

    @staticmethod
    def run(inputs: Any, params: Any, work: Workspace) -> Any:
        """The body. Returns an instance of `Outputs`; its objects, like those of `inputs`, are in ``work.store``."""
        raise NotImplementedError


_TASKS = Path(__file__).parents[1]


@cache
def find_stage(name: str) -> type[Stage]:
    """The stage of a name: the class in its module; ImportError where there is none."""
    # "engine" has no stages, so importing from there says that there is no such module.
    folder = next((path.parents[1].name for path in _TASKS.glob(f"*/stages/{name}.py")), "engine")
    module = importlib.import_module(f"..{folder}.stages.{name}", __package__)
    classes = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Stage))
    return next(stage for stage in classes if getattr(stage, "name", "") == name)
