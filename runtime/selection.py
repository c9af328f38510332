"""Which payload of a container runs here: the rules of the C++ library, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..artifacts.nfat.container import Container
from ..artifacts.nfat.contents import Payload
from ..artifacts.nfat.fat_file import BACKEND_ID
from ..artifacts.pte.contents import PteFile
from ..artifacts.pte.reader import open_pte
from ..errors import FileFormatError, InputError, NoPayloadFits
from .scratch import scratch_folder


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a caller wants and does not want.

    Attributes:
        prefer: names of payloads to try before the others, in this order.
        exclude: names of payloads not to try.
    """

    prefer: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.prefer or self.exclude)


@dataclass(frozen=True, slots=True)
class Choice:
    """The payload to run.

    Attributes:
        name: what it is called.
        pte: what its file says.
        program: an `executorch.runtime.Program` with its methods loaded.
        report: what became of each payload that was looked at, a line each, as the C++ library words them.
    """

    name: str
    pte: PteFile
    program: Any
    report: tuple[str, ...]


def select(file: Path, container: Container, methods: Sequence[str], wishes: Wishes, named_data: Path | None) -> Choice:
    """Loads the first payload that fits; its priority is its place in the container, after those that are preferred.

    Args:
        file: where the container is from, for messages.
        container: the payloads and their blobs.
        methods: names of the methods that have to load.
        wishes: the caller's.
        named_data: a `.ptd` file with what payloads of version 1 share.

    Raises:
        InputError: a wish names what is not there; as NoPayloadFits where no payload can run.
        PteforgeError: a payload cannot be rebuilt, for lack of space or of rights.
    """
    report: list[str] = []
    for payload in ordered(file, container, wishes):
        if payload.name in wishes.exclude:
            report.append(f"{payload.name}: passed over: it is excluded")
            continue
        try:
            pte, program = _open(container, payload, methods, named_data)
        except _PassedOver as problem:
            report.append(f"{payload.name}: passed over: {problem}")
            continue
        report.append(f"{payload.name}: chosen: 0 bytes in place, {payload.size} copied")
        return Choice(payload.name, pte, program, tuple(report))
    raise NoPayloadFits(str(file), tuple(report))


def ordered(file: Path, container: Container, wishes: Wishes) -> list[Payload]:
    """The payloads in the order of trying; raises InputError where a wish names what is not there."""
    check_names(file, container, (*wishes.prefer, *wishes.exclude))
    if both := [name for name in wishes.prefer if name in wishes.exclude]:
        raise InputError(f"payload {both[0]!r} cannot be preferred and excluded at once")
    rank = {name: place for place, name in enumerate(dict.fromkeys(wishes.prefer))}
    return sorted(container.payloads, key=lambda payload: rank.get(payload.name, len(rank)))


def check_names(file: Path, container: Container, names: Iterable[str]) -> None:
    """Raises InputError, naming the payloads there are, where one that is wanted is not among them."""
    there = list(dict.fromkeys(payload.name for payload in container.payloads))
    for name in names:
        if name not in there:
            raise InputError(f"{file} has no payload {name!r}; it has {', '.join(there) or 'none'}")


class _PassedOver(Exception):
    """Why a payload does not run here."""


def _open(
    container: Container, payload: Payload, methods: Sequence[str], named_data: Path | None
) -> tuple[PteFile, Any]:
    if payload.features:
        raise _PassedOver("it needs a newer runtime, for extensions of the container that this one does not know")
    if payload.size == 0:
        raise _PassedOver("it is empty")
    _check_backends(payload.description.backends)
    # A file and not bytes: the runtime maps it, and lets go of what a backend has repacked. It is deleted before it is
    # first run; the runtime keeps it open.
    with scratch_folder() as folder:
        file = folder / "payload.pte"
        _rebuild(container, payload, file)
        return _load(file, methods, named_data)


def _rebuild(container: Container, payload: Payload, file: Path) -> None:
    try:
        container.write(payload, file)
    except FileFormatError as error:
        raise _PassedOver(f"it {str(error).removeprefix(f'payload {payload.name} ')}") from error


def _load(file: Path, methods: Sequence[str], named_data: Path | None) -> tuple[PteFile, Any]:
    try:
        pte = open_pte(file)
    except FileFormatError as error:
        problem = str(error).removeprefix(f"{file}: ")
        raise _PassedOver(f"it is not a program that this runtime can load ({problem})") from error
    # The container's list of backends is a hint; this is what the methods really need.
    _check_backends(_needed(pte, methods))
    try:
        program = load_program(file, named_data)
    except RuntimeError as error:
        raise _PassedOver(f"it is not a program that this runtime can load ({first_line(error)})") from error
    for name in methods:
        try:
            program.load_method(name)
        except (RuntimeError, KeyError) as error:  # KeyError: the runtime reads names up to a NUL
            raise _PassedOver(f"its method {name!r} does not load ({first_line(error)})") from error
    return pte, program


def _needed(pte: PteFile, methods: Sequence[str]) -> Iterator[str]:
    by_name = {method.name: method for method in pte.methods}
    for name in methods:
        if name not in by_name:
            raise _PassedOver(f"it has no method {name!r}")
        yield from (delegate.id for delegate in by_name[name].delegates)


def _check_backends(ids: Iterable[str]) -> None:
    for backend in ids:
        if problem := backend_problem(backend):
            raise _PassedOver(problem)


def backend_problem(backend: str) -> str | None:
    """Why what needs a backend cannot run in this process; None if it can."""
    from executorch.runtime import Runtime  # noqa: PLC0415 - takes seconds, and importing this package must not

    backend = backend.partition("\0")[0]  # as the runtime reads it, which is C++
    if backend == BACKEND_ID:
        return "it is a fat program itself, and those do not nest"
    registry = Runtime.get().backend_registry
    if backend not in registry.registered_backend_names:
        return f"it needs {ascii(backend)[1:-1]}, which is not registered in this runtime"
    if not registry.is_available(backend):
        return f"it needs {ascii(backend)[1:-1]}, which is not available on this device"
    return None


def load_program(file: Path, data_file: Path | None = None) -> Any:
    """An `executorch.runtime.Program`, checked as far as ExecuTorch can; raises RuntimeError where it is refused."""
    import executorch.kernels.quantized  # noqa: F401, PLC0415 - kernels that quantized programs need
    from executorch.runtime import Runtime, Verification  # noqa: PLC0415 - see above

    return Runtime.get().load_program(file, verification=Verification.InternalConsistency, data_path=data_file)


def first_line(error: Exception) -> str:
    """What an error of the runtime says, without the stack that it may bring."""
    return (str(error).splitlines() or [type(error).__name__])[0]
