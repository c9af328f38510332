"""Selects the payload of a container to run, by the same rules as the C++ library."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import FileFormatError, InputError, NoPayloadFits, PteforgeError, first_line
from ..formats.nfat.container import Container
from ..formats.nfat.contents import BACKEND_ID, Payload
from ..formats.nfat.golden import Execute
from ..formats.pte.contents import Method, PteFile
from ..formats.pte.reader import open_pte
from .quiet import load_runtime


@dataclass(frozen=True, slots=True)
class Preference:
    """Names of payloads to try before the others, in this order, and of payloads not to try."""

    prefer: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.prefer or self.exclude)


@dataclass(frozen=True, slots=True)
class Choice:
    """The payload to run."""

    name: str
    pte: PteFile
    programs: Mapping[str, Any]  # an `executorch.runtime.Program` with each method loaded; see `load_programs`
    report: tuple[str, ...]  # a line for each payload that was tried, worded as in the C++ library


def select(
    file: Path, container: Container, methods: Sequence[str], preference: Preference, named_data: Path | None
) -> Choice:
    """Loads the first payload that fits: preferred ones first, then in the container's order.

    The `.ptd` file `named_data` has the named data that payloads of version 1 share. Raises InputError if the
    preference names an unknown payload, as NoPayloadFits if no payload can run; PteforgeError if a payload cannot be
    rebuilt for lack of space or permissions.
    """
    report: list[str] = []
    for payload in _ordered(file, container, preference):
        if payload.name in preference.exclude:
            report.append(f"{payload.name}: passed over: it is excluded")
            continue
        try:
            pte, programs = _open(container, payload, methods, named_data)
        except _PassedOver as problem:
            report.append(f"{payload.name}: passed over: {problem}")
            continue
        checked = "; it passed its own check" if payload.self_check else ""
        report.append(f"{payload.name}: chosen: 0 bytes in place, {payload.size} copied{checked}")
        return Choice(payload.name, pte, programs, tuple(report))
    raise NoPayloadFits(str(file), tuple(report))


def check_names(file: Path, container: Container, names: Iterable[str]) -> None:
    """Raises InputError, which lists the payloads, if one of `names` is not among them."""
    payloads = list(dict.fromkeys(payload.name for payload in container.payloads))
    for name in names:
        if name not in payloads:
            raise InputError(f"{file} has no payload {name!r}; it has {', '.join(payloads) or 'none'}")


def _ordered(file: Path, container: Container, preference: Preference) -> list[Payload]:
    check_names(file, container, (*preference.prefer, *preference.exclude))
    if both := [name for name in preference.prefer if name in preference.exclude]:
        raise InputError(f"payload {both[0]!r} cannot be preferred and excluded at once")
    rank = {name: index for index, name in enumerate(dict.fromkeys(preference.prefer))}
    return sorted(container.payloads, key=lambda payload: rank.get(payload.name, len(rank)))


class _PassedOver(Exception):
    """The reason why a payload does not run here."""


def _open(
    container: Container, payload: Payload, methods: Sequence[str], named_data: Path | None
) -> tuple[PteFile, Mapping[str, Any]]:
    if payload.unknown_features:
        raise _PassedOver("it needs a newer runtime, for extensions of the container that this one does not know")
    if payload.size == 0:
        raise _PassedOver("it is empty")
    _check_backends(payload.description.backends)
    # A file, which the runtime maps, and unmaps once a backend has repacked weights; deleted while it is open.
    with scratch_folder() as folder:
        file = folder / "payload.pte"
        try:
            container.write(payload, file)
        except FileFormatError as error:
            raise _PassedOver(f"it {str(error).removeprefix(f'payload {payload.name} ')}") from error
        loaded = _load(file, methods, named_data)
        _check_itself(container, payload, [method for method in loaded[0].methods if method.name in methods], file)
        return loaded


def _check_itself(container: Container, payload: Payload, methods: Iterable[Method], file: Path) -> None:
    """Runs the payload's golden cases, on programs that are then discarded."""

    def load(method: str) -> Execute:
        execute: Execute = load_program(file).load_method(method).execute
        return execute

    try:
        check = container.golden_check(payload)
        problem = check.problem(methods, load) if check else ""
    except FileFormatError as error:
        problem = f"it {str(error).removeprefix(f'payload {payload.name} ')}"
    if problem:
        raise _PassedOver(problem)


def _load(file: Path, methods: Sequence[str], named_data: Path | None) -> tuple[PteFile, Mapping[str, Any]]:
    try:
        pte = open_pte(file)
    except FileFormatError as error:
        problem = str(error).removeprefix(f"{file}: ")
        raise _PassedOver(f"it is not a program that this runtime can load ({problem})") from error
    # The container's list of backends is only a hint.
    by_name = {method.name: method for method in pte.methods}
    for name in methods:
        if name not in by_name:
            raise _PassedOver(f"it has no method {name!r}")
        _check_backends(delegate.id for delegate in by_name[name].delegates)
    chosen = [method for method in pte.methods if method.name in methods]
    try:
        programs = load_programs(chosen, lambda: load_program(file, named_data))
    except RuntimeError as error:
        raise _PassedOver(f"it is not a program that this runtime can load ({first_line(error)})") from error
    for name in methods:
        try:
            programs[name].load_method(name)
        except (RuntimeError, KeyError) as error:  # KeyError: the runtime reads names up to a NUL
            raise _PassedOver(f"its method {name!r} does not load ({first_line(error)})") from error
    return pte, programs


def _check_backends(ids: Iterable[str]) -> None:
    for backend in ids:
        if problem := backend_problem(backend):
            raise _PassedOver(problem)


def backend_problem(backend: str) -> str | None:
    """Why programs that need a backend cannot run in this process; None if they can."""
    load_runtime()
    from executorch.runtime import Runtime  # noqa: PLC0415 - takes seconds

    backend = backend.partition("\0")[0]  # the runtime reads C strings
    if backend == BACKEND_ID:
        return "it is a fat program itself, and those do not nest"
    registry = Runtime.get().backend_registry
    if backend not in registry.registered_backend_names:
        return f"it needs {ascii(backend)[1:-1]}, which is not registered in this runtime"
    if not registry.is_available(backend):
        return f"it needs {ascii(backend)[1:-1]}, which is not available on this device"
    return None


def missing_operators(operators: Iterable[str]) -> str:
    """Says which operators have no kernel in this process; empty if all have one."""
    import torch  # noqa: F401, PLC0415 - has the libraries that the next one needs
    from executorch.extension.pybindings import _C  # noqa: PLC0415 - as above

    here = set(_C._get_operator_names())  # noqa: SLF001 - `portable_lib` has it, too, but imports all of exir
    missing = [name for name in operators if name not in here]
    return f"this runtime has no kernel for {', '.join(missing)}" if missing else ""


def load_program(file: Path, data_file: Path | None = None) -> Any:
    """Loads an `executorch.runtime.Program` with all of ExecuTorch's checks; raises RuntimeError if it is rejected."""
    load_runtime()
    from executorch.runtime import Runtime, Verification  # noqa: PLC0415 - takes seconds

    for module in open_pte(file).kernel_modules:
        importlib.import_module(module)
    try:
        data = {"data_path": data_file} if data_file else {}  # ExecuTorch before 1.5 takes none
        return Runtime.get().load_program(file, verification=Verification.InternalConsistency, **data)
    except MemoryError as error:  # std::bad_alloc: a damaged file may ask for any size
        raise RuntimeError("it asks for more memory than there is") from error


def load_programs(
    methods: Sequence[Method], load: Callable[[], Any], stateless: Collection[str] = ()
) -> dict[str, Any]:
    """The program for each method: one of its own, or one for all methods that share their state or have none.

    ExecuTorch's Python runtime (executorch 1.5.1) lays out methods of one program in one memory, where each overwrites
    what another one keeps for its next call, such as a cache.
    """
    first = load()
    alone = [
        method.name for method in methods if not (method.shares_state or method.constant or method.name in stateless)
    ]
    others = alone[not any(method.shares_state for method in methods) :]
    return dict.fromkeys((method.name for method in methods), first) | {name: load() for name in others}


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder, removed at the end; files mapped from it stay mapped. Raises PteforgeError if it is full."""
    try:
        with TemporaryDirectory(prefix="pteforge-") as folder:
            yield Path(folder)
    except OSError as error:
        raise PteforgeError(
            f"a payload cannot be rebuilt in a temporary folder: {error}; $TMPDIR names another place"
        ) from error
