"""Measures the time of methods of a payload on a place, with an ETDump's shares of it, and their memory."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import torch
from executorch.runtime import Verification

from ...errors import FileFormatError, PteforgeError, first_line
from ...formats.nfat.container import is_fat
from ...formats.pte.contents import Method
from ...formats.pte.reader import open_pte
from ...formats.pte.tables import I32, U64, Flatbuffer, TableView
from ..results.costs import MemoryUse, TimeShare, Timing, percentile
from ..results.figures import WHOLE_FILE
from ..upstream.compat import load_for_executorch
from .device import DeviceProgram, device_program
from .running import Loadable, Sample, load_libraries, missing_here, runnable_payloads

if TYPE_CHECKING:
    from .stages.prove import PlaceParams

_TRIED, _LEAST, _MOST = 3, 10, 1000  # calls to find out how many to make, and those at least and at most
_TRACED = 5
_ROUNDS = 9


class Measurable(Protocol):
    """A program whose calls can be measured, here or elsewhere."""

    @property
    def path(self) -> Path:
        """Path of the program, to be read here."""

    def sample(self, method: str, inputs: Sequence[Any], calls: int) -> Sample:
        """Loads a method and calls it. Raises PteforgeError where that fails."""

    def trace(self, method: str, inputs: Sequence[Any], calls: int) -> bytes:
        """An ETDump of that number of calls. Raises PteforgeError where there is none."""


@dataclass(frozen=True, slots=True)
class HostProgram:
    """A program on this process's runtime."""

    loadable: Loadable

    @property
    def path(self) -> Path:
        return self.loadable.program

    def sample(self, method: str, inputs: Sequence[Any], calls: int) -> Sample:
        before = _forget_peak()
        began = time.perf_counter()
        loaded = self.loadable.load().load_method(method)
        load = time.perf_counter() - began
        taken = []
        for _ in range(calls):
            began = time.perf_counter()
            loaded.execute(inputs)
            taken.append(time.perf_counter() - began)
        return Sample(load, taken, max(0, _peak() - before) if before else 0)

    def trace(self, method: str, inputs: Sequence[Any], calls: int) -> bytes:
        data = self.loadable.data and str(self.loadable.data)
        program = load_for_executorch(
            str(self.path), data, enable_etdump=True, program_verification=Verification.InternalConsistency
        )
        if not program.has_etdump():
            raise PteforgeError("this machine's runtime is built without the event tracer")
        for _ in range(calls):
            program.run_method(method, tuple(inputs))
        with TemporaryDirectory(prefix="pteforge-etdump-") as folder:
            dump = Path(folder, "calls.etdp")
            program.write_etdump_result_to_file(str(dump))
            return dump.read_bytes()


def programs_on(
    place: PlaceParams | None, path: Path, data_files: Sequence[Path], not_run: dict[str, str]
) -> Iterator[tuple[str, Measurable]]:
    """Name and program of all that a place can run, as `runnable_payloads`; None is this process's runtime.

    A command runs a whole fat file. Fills `not_run` with the reason for what cannot be run, or has no times.
    """
    pte = open_pte(path)
    if place and place.command:
        if reason := "has no times on an emulated core" if place.emulated else place.lacks(pte.backends):
            not_run[WHOLE_FILE] = reason
            return
        with device_program(place.command, path, data_files, place.env) as program:
            yield "", program
        return
    if place:
        load_libraries(place.library, place.env)
    if reason := "" if is_fat(pte) else missing_here(pte):
        not_run[WHOLE_FILE] = reason
        return
    for name, loadable in runnable_payloads(path, data_files, not_run):
        yield name, HostProgram(loadable)


def time_methods(program: Measurable, inputs: Mapping[str, Sequence[Any]], seconds: float) -> Iterator[Timing]:
    """Times calls of methods on their flat inputs, each for about that number of seconds. Raises PteforgeError."""
    for method in open_pte(program.path).methods:
        if method.name in inputs:
            flat = method.lay_out(inputs[method.name])
            sample = _repeated(program, method.name, flat, seconds)
            shares: tuple[TimeShare, ...] = ()
            untraced = ""
            try:
                shares = shares_of(program.trace(method.name, flat, _TRACED), method)
            except (PteforgeError, RuntimeError) as error:
                untraced = f"there is no trace: {first_line(error)}"
            rest = sample.calls[1:]
            of_calls = sample.calls[0], median(rest), percentile(rest, 0.95), len(rest)
            yield Timing("", method.name, "", "", sample.load, *of_calls, sample.peak_memory, shares, untraced)


def compare_times(
    new: Measurable, old: Measurable, inputs: Sequence[Mapping[str, Sequence[Any]]], seconds: float
) -> Iterator[dict[str, Any]]:
    """Measures each method of two programs in turns, another one first each time, each on its own flat inputs.

    Yields the medians of calls of the new one, divided by those of the old one in the same round: median and extremes.
    """
    sides = []
    for program, by_method in zip((new, old), inputs, strict=True):
        methods = [method for method in open_pte(program.path).methods if method.name in by_method]
        sides.append((program, {method.name: method.lay_out(by_method[method.name]) for method in methods}))
    for method in (method for method in sides[0][1] if method in sides[1][1]):
        ratios = []
        for turn in range(_ROUNDS):
            ordered = sides if turn % 2 else sides[::-1]
            calls = [_repeated(program, method, flat[method], seconds / _ROUNDS).calls for program, flat in ordered]
            first, second = (median(taken[1:]) for taken in calls)
            ratios.append(first / second if turn % 2 else second / first)
        spread = {"min": min(ratios), "median": median(ratios), "max": max(ratios), "rounds": _ROUNDS}
        yield {"method": method, "where": f"method {method!r}", **spread}


def _repeated(program: Measurable, method: str, inputs: Sequence[Any], seconds: float) -> Sample:
    try:
        tried = min(program.sample(method, inputs, _TRIED).calls)
        calls = min(_MOST, max(_LEAST, int(seconds / max(tried, 1e-9))))
        return program.sample(method, inputs, 1 + calls)
    except (RuntimeError, KeyError) as error:
        raise PteforgeError(f"method {method!r} cannot be timed: {first_line(error)}") from error


# slots of the tables of an ETDump: devtools/etdump/etdump_schema_flatcc.fbs of executorch 1.5.1
_Dump = IntEnum("_Dump", {"RUNS": 1})
_Run = IntEnum("_Run", {"EVENTS": 3})
_Event = IntEnum("_Event", {"PROFILE": 0})
_Profile = IntEnum("_Profile", {"NAME": 0, "INSTRUCTION": 2, "START": 6, "END": 7})


def shares_of(dump: bytes, method: Method) -> tuple[TimeShare, ...]:
    """The shares of delegates and other operators in the calls of an ETDump, largest first; raises FileFormatError."""
    whole, runs = 0, 0
    spent, calls = Counter[str](), Counter[str]()
    instructions: dict[str, set[int]] = {}
    for name, instruction, taken in _events(dump):
        if name == "Method::execute":
            whole, runs = whole + taken, runs + 1
        elif name in ("OPERATOR_CALL", "DELEGATE_CALL"):
            if not 0 <= instruction < len(method.called):
                raise FileFormatError(f"the ETDump has instruction {instruction}, the method {len(method.called)}")
            called = method.called[instruction]
            spent[called] += taken
            calls[called] += 1
            instructions.setdefault(called, set()).add(instruction)
    if not (runs and whole):
        raise FileFormatError("the ETDump has no calls")
    backends = {delegate.id for delegate in method.delegates}
    return tuple(
        TimeShare(name, taken / whole, round(calls[name] / runs), name in backends, tuple(sorted(instructions[name])))
        for name, taken in spent.most_common()
    )


def _events(dump: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, instruction and duration of each event that was timed."""
    if dump[8:12] != b"ED00":
        raise FileFormatError("the command wrote no ETDump")
    root: TableView = Flatbuffer(memoryview(dump)[4:]).root()  # after its size
    for run in root.children(_Dump.RUNS):
        for event in run.children(_Run.EVENTS):
            if profile := event.child(_Event.PROFILE):
                start, end = profile.number(_Profile.START, U64), profile.number(_Profile.END, U64)
                yield profile.text(_Profile.NAME), profile.number(_Profile.INSTRUCTION, I32, -1), end - start


def measure_memory(program: DeviceProgram, examples: Mapping[str, Mapping[str, Any]]) -> list[MemoryUse]:
    """The memory of methods for the smallest and the largest of their stored inputs, and for the first example.

    None of it if the command does not measure it: the user's own need not have the option ``--memory``.
    """
    uses = []
    for method in open_pte(program.path).methods:
        for label, inputs in _of_sizes(examples.get(method.name)).items():
            shapes = ", ".join("x".join(map(str, value.shape)) for value in inputs if isinstance(value, torch.Tensor))
            known = {"payload": "", "method": method.name, "inputs": label, "shapes": shapes}
            try:
                measured = json.loads(program.count(method.name, method.lay_out(inputs)))
                uses.append(MemoryUse.from_json({**measured, **known}))
            except (PteforgeError, ValueError, TypeError):
                return []
    return uses


def _of_sizes(stored: Mapping[str, Any] | None) -> dict[str, Sequence[Any]]:
    """The first example, and the smallest and the largest if they differ from it in size, by name."""
    if not stored:
        return {}
    inputs = stored["inputs"]
    named = {"example": inputs[0], "smallest": min(inputs, key=_elements), "largest": max(inputs, key=_elements)}
    size = _elements(inputs[0])
    return {name: flat for name, flat in named.items() if name == "example" or _elements(flat) != size}


def _elements(inputs: Sequence[Any]) -> int:
    return sum(value.numel() for value in inputs if isinstance(value, torch.Tensor))


def _forget_peak() -> int:
    """Resets the peak to the resident bytes, and returns these; 0 if the system does not know them."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return 0
    return _peak()


def _peak() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
