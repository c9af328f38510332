"""`pteforge run`, `verify`, `bench` and `runtime`: files on ExecuTorch runtimes."""

from __future__ import annotations

import io
import json
import shlex
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...artifacts.files import open_input, read_sidecar, replace_file
from ...errors import InputError, ObjectMissing, PteforgeError, convert_os_errors, first_line, printable
from ...tasks.results.tables import format_sqnr
from . import completion
from .options import AS_JSON, DATA, STORE, argument, check_output, open_existing_store, option, split_names
from .terminal import print_json
from .weights import check_digest, check_found, data_files, pte_files

if TYPE_CHECKING:
    from ...artifacts.ref import ArtifactRef
    from ...artifacts.store import Store
    from ...configs.verification import VerifyBounds
    from ...formats.pte.contents import Method, ValueSpec
    from ...tasks.results.costs import Timing
    from ...tasks.results.delivered import Delivered
    from ...tasks.results.figures import Figures
    from ...tasks.verify.stages.prove import PlaceParams


def run_file(  # noqa: PLR0913 - one parameter per option
    file: Annotated[Path, argument("A .pte file.")],
    *,
    method: Annotated[str, typer.Option(help="Which method to run.", autocompletion=completion.methods)] = "forward",
    inputs: Annotated[
        Path | None,
        option("Inputs in order, as numpy.savez writes them; random by default.", "FILE.npz", name="--input"),
    ] = None,
    output: Annotated[Path | None, option("Write the outputs, in order.", "FILE.npz")] = None,
    seed: Annotated[int, typer.Option(help="Seed of random inputs.")] = 0,
    prefer: Annotated[
        list[str] | None,
        option("Payloads of a fat file to try first.", "NAME,...", "by priority", complete=completion.payloads),
    ] = None,
    exclude: Annotated[
        list[str] | None, option("Payloads of a fat file not to try.", "NAME,...", "none", complete=completion.payloads)
    ] = None,
    data: DATA = None,
    as_json: AS_JSON = False,
) -> None:
    """Run a method of a .pte file on this machine's ExecuTorch runtime; for a fat file, the first payload that fits."""
    from ...formats.nfat.container import is_fat
    from ...formats.pte.buckets import read_buckets
    from ...formats.pte.metadata import read_metadata
    from ...formats.pte.reader import open_pte
    from ...runtime import load
    from ...runtime.quiet import quiet

    pte = open_pte(file)
    check_output(output)
    buckets = read_buckets(read_metadata(file, pte)).get(method)
    example = buckets[0].name if buckets else method  # its inputs are of the right kind
    called = next((candidate for candidate in pte.methods if candidate.name == example), None)
    if called is None:
        raise InputError(f"{file} has no method {method!r}; it has {', '.join(m.name for m in pte.methods)}")
    weights = data_files(file, data)
    if not data and not is_fat(pte):  # containers have the digests of a fat file's weights
        check_found(file, weights)
    with quiet():
        values = _read_inputs(inputs, called, of_any_size=bool(buckets)) if inputs else _random_inputs(called, seed)
        import executorch.runtime  # noqa: F401 - takes seconds that are not the file's

        began = time.perf_counter()
        loaded = load(file, prefer=split_names(prefer), exclude=split_names(exclude), data_files=weights)
        load_seconds = time.perf_counter() - began
        done = loaded.timed_run(method, values)
        ran = loaded.choose_bucket(method, values) if buckets else method
    times = {"load": 1000 * (load_seconds + done.load_seconds), "run": 1000 * done.run_seconds}
    if output:
        _write(output, done.outputs)
    outputs = [_describe(index, value) for index, value in enumerate(done.outputs)]
    if as_json:
        about = {"payload": loaded.payload, "method": ran, "report": loaded.report}
        print_json({**about, "outputs": outputs, "milliseconds": times})
        return
    typer.echo(f"load {times['load']:.3f} ms, {printable(ran)} {times['run']:.3f} ms", err=True)
    if loaded.payload is not None:  # which ran, and why those before it did not
        passed_over = [line for line in loaded.report if ": passed over: " in line]
        for line in (*passed_over, f"{loaded.payload}: ran"):
            typer.echo(printable(line), err=True)
    typer.echo("\n".join(map(_line, outputs)))


def _random_inputs(method: Method, seed: int) -> list[Any]:
    import torch

    from ...formats.pte.contents import ScalarSpec

    generator = torch.Generator().manual_seed(seed)

    def random_input(spec: ValueSpec) -> Any:
        if isinstance(spec, ScalarSpec):
            return spec.value
        dtype, shape = getattr(torch, spec.dtype), list(spec.shape)
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randint(0, 2, shape, generator=generator).to(dtype)

    try:
        return [random_input(spec) for spec in method.inputs]
    except RuntimeError as error:  # torch's for a lack of memory: a damaged file may name any shape
        raise InputError(f"random inputs for {method.name!r} cannot be made: {first_line(error)}") from error


def _read_inputs(path: Path, method: Method, *, of_any_size: bool) -> list[Any]:
    import numpy as np
    import torch

    from ...formats.pte.contents import TensorSpec, shape_problem

    try:
        with open_input(path) as file, np.load(file, allow_pickle=False) as arrays:
            values = [torch.from_numpy(arrays[name]) for name in arrays.files]
    except (OSError, ValueError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as the arrays that numpy.savez writes: {error}") from error
    wanted = [spec for spec in method.inputs if isinstance(spec, TensorSpec)]
    if len(values) != len(wanted):
        raise InputError(f"{path} has {len(values)} arrays; method {method.name!r} takes {len(wanted)} tensors")
    for index, (value, spec) in enumerate(zip(values, wanted, strict=True)):
        values[index] = value.to(getattr(torch, spec.dtype))
        if not of_any_size and (problem := shape_problem(spec, value.shape)):
            raise InputError(f"{path}: array {index} {problem}")
    tensors = iter(values)
    return [next(tensors) if isinstance(spec, TensorSpec) else spec.value for spec in method.inputs]


def _write(path: Path, outputs: list[Any]) -> None:
    import numpy as np
    import torch

    def array(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return (value.float() if value.dtype is torch.bfloat16 else value).numpy()

    content = io.BytesIO()  # numpy would add .npz to a path with another suffix
    np.savez(content, *map(array, outputs))
    with convert_os_errors(InputError, f"output cannot be written to {path}"):
        replace_file(path, content.getvalue(), path.parent)


def _describe(index: int, value: Any) -> dict[str, Any]:
    import torch

    if not isinstance(value, torch.Tensor):
        return {"output": index, "value": value}
    numbers = value.to(torch.float64)
    figures = {"min": numbers.min, "max": numbers.max, "mean": numbers.mean}
    return {
        "output": index,
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        **{name: figure().item() if value.numel() else None for name, figure in figures.items()},
        "first": numbers.flatten()[:6].tolist(),
    }


def _line(output: dict[str, Any]) -> str:
    name = f"output {output['output']}"
    if "value" in output:
        return f"{name}: {output['value']!r}"
    if output["min"] is None:
        return f"{name}: {output['dtype']} {output['shape']}, empty"
    figures = ", ".join(f"{figure} {output[figure]:.6g}" for figure in ("min", "max", "mean"))
    first = ", ".join(f"{number:.6g}" for number in output["first"])
    return f"{name}: {output['dtype']} {output['shape']}, {figures}, first [{first}]"


def verify_files(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help=".pte files that pteforge made, or folders of such.")
    ],
    *,
    place: Annotated[
        str, option("Run them elsewhere: qemu:CORE, library:PATH, python:PATH or command:COMMAND.", "PLACE", False)
    ] = "",
    device: Annotated[str, typer.Option(hidden=True)] = "",  # the former spelling
    store: STORE = None,
    as_json: AS_JSON = False,
) -> None:
    """Run produced files again on the inputs they were verified with, and compare their outputs with eager's.

    The inputs and eager's outputs come from the store that the files were made with. If one file fails, the others
    are still verified.
    """
    from ...runtime.quiet import quiet

    if device and place:
        raise InputError("--device and --place both say where files run; leave one of them out")
    if device:
        place = f"command:{device}"
        typer.echo("note: `--device COMMAND` is `--place command:COMMAND` now", err=True)
    command: list[str] = []
    if place:
        with quiet():
            command = _reach(place)
    several = len(files) > 1 or files[0].is_dir()
    verifiable = [_read_verifiable(file) for file in pte_files(files)]
    if place and not command:
        with quiet():
            _check_devices(verifiable, place)
    with open_existing_store(store) as opened:
        for file in verifiable:
            _fetch(file, opened)
        if not several:
            with quiet():
                figures = _verify(verifiable[0], opened, command)
            if as_json:
                print_json(figures.to_json())
            else:
                _print_figures(figures)
            return
        verified, failed = _verify_all(verifiable, opened, command, err=as_json)
    if as_json:
        done = {name: figures.to_json() for name, figures in verified.items()}
        print_json({"verified": done, "failed": failed})
    else:
        typer.echo(f"{len(verified)} files verified" + (f", {len(failed)} failed" if failed else ""))
    if failed:
        raise typer.Exit(1)


def _reach(text: str) -> list[str]:
    """The command of a place, whose libraries are loaded here. Raises InputError if it cannot be reached."""
    from ...configs.places import PlaceConfig
    from ...tasks.verify.places import NFAT_RUN
    from ...tasks.verify.running import load_libraries

    words = shlex.split(PlaceConfig.parse(text)[1].command or "")
    if words and words[0] != NFAT_RUN:  # only `nfat_run` may have to be found, and no key needs what others report
        return words
    place = _reachable(text)
    load_libraries(place.library, place.env)
    return list(place.command)


def _check_devices(verifiable: Iterable[_Verifiable], place: str) -> None:
    """Raises InputError if a backend that files need is on a place, and finds no device there."""
    from ...formats.nfat.container import is_fat, open_fat
    from ...formats.pte.reader import open_pte
    from ...tasks.verify.running import without_device

    for file in verifiable:
        pte = open_pte(file.path)
        payloads = open_fat(file.path, file.data_files).container.payloads if is_fat(pte) else ()
        needed = [*pte.backends, *(name for payload in payloads for name in payload.description.backends)]
        if absent := without_device(needed):
            raise InputError(f"--place {place}: {', '.join(absent)} finds no device or driver for {file.path}")


def _reachable(text: str) -> PlaceParams:
    """A place that can be reached; raises InputError for another one."""
    from ...configs.places import PlaceConfig
    from ...tasks.verify.places import plan_place

    place = plan_place(text, PlaceConfig.parse(text)[1], Path.cwd())
    if place.unreachable:
        raise InputError(f"--place {text}: {place.unreachable}")
    return place.params


def bench_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help=".pte files, or folders of such.")],
    *,
    place: Annotated[
        list[str] | None,
        option(
            "Where: host, qemu:CORE, library:PATH, python:PATH or command:COMMAND; may be repeated.", "PLACE", "host"
        ),
    ] = None,
    against: Annotated[
        Path | None, option("Measure FILE and this one in turns, and print the ratio of their times.", "OLD.pte")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds of calls, for each method.")] = 1.0,
    store: STORE = None,
    as_json: AS_JSON = False,
) -> None:
    """Measure how long files take to load and to be called, and what takes the time. Let nothing else run meanwhile.

    Methods get the first example that they were verified with, if the file's provenance and its store are there, else
    random inputs of the largest sizes.
    """
    from ...configs.places import HOST
    from ...runtime.quiet import quiet
    from ...tasks.results.delivered import Delivered

    expanded = pte_files(files)
    if against and len(expanded) != 1:
        raise InputError(f"--against compares one file with another, and {len(expanded)} are named")
    places = {text: None if text == HOST else _reachable(text) for text in place or [HOST]}
    with quiet():
        if against:
            timings, not_run, ratios = [], {}, [*_ratios(expanded[0], against, places, seconds, store)]
        else:
            timings, not_run, ratios = *_timed(expanded, places, seconds, store), []
    if as_json:
        listed = [{"file": str(file), **timing.to_json()} for file, timing in timings]
        print_json({"timings": listed, "ratios": ratios, "not_run": not_run})
        return
    delivered = {file: Delivered.next_to(file) for file in dict.fromkeys(file for file, _ in timings)}
    for file, timing in timings:
        typer.echo(f"{printable(str(file))}: {printable(str(timing))}")
        for line in _shares(file, timing, delivered[file]):
            typer.echo(f"  {printable(line)}")
    for ratio in ratios:
        spread = f"{ratio['min']:.3f} to {ratio['max']:.3f} in {ratio['rounds']} rounds"
        typer.echo(printable(f"{ratio['where']} on {ratio['place']}: {ratio['median']:.3f} of the time ({spread})"))
    for what, reason in not_run.items():
        typer.echo(printable(f"{what}: {reason}"), err=True)


_Places = Mapping[str, "PlaceParams | None"]


def _timed(
    files: Sequence[Path], places: _Places, seconds: float, store: str | None
) -> tuple[list[tuple[Path, Timing]], dict[str, str]]:
    """The times of each method of each payload, and why others have none."""
    from ...tasks.verify.measure import programs_on, time_methods
    from ...tasks.verify.places import processor

    timings: list[tuple[Path, Timing]] = []
    not_run: dict[str, str] = {}
    for text, place in places.items():
        machine = (place.machine if place else "") or processor()
        for file in files:
            skipped: dict[str, str] = {}
            for payload, program in programs_on(place, file, data_files(file, None), skipped):
                timed = time_methods(program, _bench_inputs(file, program.path, store), seconds)
                timings += [(file, replace(timing, payload=payload, place=text, machine=machine)) for timing in timed]
            not_run |= {f"{file}, {name}, on {text}": reason for name, reason in skipped.items()}
    return timings, not_run


def _ratios(new: Path, old: Path, places: _Places, seconds: float, store: str | None) -> Iterator[dict[str, Any]]:
    """The ratio of each method that both files have, in payloads of the same name; raises InputError without one."""
    from ...tasks.verify.measure import compare_times, programs_on

    for text, place in places.items():
        skipped: dict[str, str] = {}
        shared = False
        for payload, program in programs_on(place, new, data_files(new, None), skipped):
            for other, before in programs_on(place, old, data_files(old, None), skipped):
                inputs = _bench_inputs(new, program.path, store), _bench_inputs(old, before.path, store)
                for timed in compare_times(program, before, inputs, seconds) if other == payload else ():
                    shared = True
                    where = f"payload {payload}, {timed['where']}" if payload else timed["where"]
                    yield {**timed, "place": text, "payload": payload, "where": where}
        if not shared:
            reason = next((f": it {reason}" for reason in skipped.values()), "")
            raise InputError(f"{new} and {old} have no method in common that can be timed on {text}{reason}")


def _bench_inputs(file: Path, program: Path, store: str | None) -> dict[str, Sequence[Any]]:
    """Flat inputs of the methods of a program, which is `file` or a payload of it."""
    from ...formats.pte.reader import open_pte
    from ...tasks.programs.values import load_value

    examples: dict[str, Sequence[Any]] = {}
    with suppress(InputError):
        verifiable = _read_verifiable(file)
        with open_existing_store(store) as opened:
            _fetch(verifiable, opened)
            for method, ref in verifiable.examples.items():
                examples[method] = load_value(ref, opened.local)["inputs"][0]
    methods = [method for method in open_pte(program).methods if not method.constant]
    return {method.name: examples.get(method.name) or _random_inputs(method, 0) for method in methods}


_SHARES = 8  # lines
_LINES_NAMED = 4


def _shares(file: Path, timing: Timing, delivered: Delivered | None) -> Iterator[str]:
    """What takes the time of a method, with lines of a debug-mode model, and why operators are outside of delegates."""
    from ...tasks.results.delegation import MethodWork

    if timing.untraced:
        yield timing.untraced
    try:
        maps = json.loads(file.with_suffix(".debug.json").read_text(encoding="utf-8"))
        maps = maps[timing.payload] if timing.payload else maps
        handles, sources = (maps[role][timing.method] for role in ("debug_handles", "debug_sources"))
    except (OSError, ValueError, LookupError, TypeError):
        handles, sources = {}, {}
    works = delivered.every(MethodWork) if delivered else ()
    of_method = (work for work in works if (work.payload, work.method) == (timing.payload, timing.method))
    reasons = {_base(calls.operator): calls.why for work in of_method for calls in work.outside if calls.kept_on_cpu}
    for share in timing.shares[:_SHARES]:
        groups = [handles.get(str(instruction), ()) for instruction in share.instructions]
        flat = [handle for group in groups for handle in (group if isinstance(group, list) else [group])]
        lines = dict.fromkeys(source["line"] for handle in flat for source in sources.get(str(handle), ()))
        where = ", ".join([line for line in lines if line][:_LINES_NAMED])
        outside = "" if share.delegate else ", outside of delegates"
        calls = f"{share.calls} call{'s' * (share.calls != 1)}{outside}"
        yield f"{share.share:6.1%}  {share.name} ({calls})" + (f": {where}" if where else "")
        if why := None if share.delegate else reasons.get(_base(share.name)):
            yield f"        left to the CPU: {why}"
    if rest := timing.shares[_SHARES:]:
        yield f"{sum(share.share for share in rest):6.1%}  {len(rest)} other operators"


def _base(operator: str) -> str:
    """An operator without its overload: ``aten.add`` for ``aten::add.out`` and ``aten.add.Tensor``."""
    return ".".join(operator.replace("::", ".").split(".")[:2])


runtime_app = typer.Typer(help="Runtimes that files are verified on.", no_args_is_help=True)


@runtime_app.callback()
def _runtimes() -> None:
    """Groups the commands about runtimes, of which ``install`` is one."""


@runtime_app.command("install")
def install_runtime(
    machine: Annotated[Literal["host", "arm64"], argument("This machine, or Arm, whose cores QEMU emulates.")],
) -> None:
    """Build, once, what places such as command:nfat_run (host) and qemu:cortex-a53 (arm64) run."""
    from ...tasks.verify.places import install

    place = "command:nfat_run" if machine == "host" else "qemu:cortex-a53"
    typer.echo(f"nfat_run is {install(machine)}; use it as --place {place}")


def _verify_all(
    verifiable: Sequence[_Verifiable], store: Store, command: Sequence[str], *, err: bool
) -> tuple[dict[str, Figures], dict[str, str]]:
    """Figures of files that pass, and messages of those that do not, by name; prints each as soon as it is known.

    `err` prints figures to standard error, where messages go in any case.
    """
    from ...runtime.quiet import quiet

    verified: dict[str, Figures] = {}
    failed: dict[str, str] = {}
    for file in verifiable:
        name = str(file.path)
        try:
            with quiet():
                verified[name] = _verify(file, store, command)
        except InputError:
            raise
        except PteforgeError as error:
            failed[name] = str(error)
            typer.echo(f"{name}: {error}", err=True)
        else:
            _print_figures(verified[name], f"{name}: ", err=err)
    return verified, failed


@dataclass(frozen=True, slots=True)
class _Verifiable:
    """A file with its external data, its bounds, and its examples (inputs and eager's outputs) by method."""

    path: Path
    data_files: Sequence[Path]
    bounds: VerifyBounds
    examples: Mapping[str, ArtifactRef]


def _fetch(file: _Verifiable, store: Store) -> None:
    """Gets the examples of a file; raises InputError if the store lacks them."""
    for ref in file.examples.values():
        try:
            store.fetch(ref)
        except ObjectMissing as error:
            raise InputError(
                f"the inputs that {file.path} was verified with are not in the store {store.url}; name its store "
                "with --store, or export the model again"
            ) from error


def _verify(file: _Verifiable, store: Store, command: Sequence[str]) -> Figures:
    from ...tasks.programs.values import load_value
    from ...tasks.verify.device import device_program, verify_program
    from ...tasks.verify.verification import verify_file

    examples = {method: load_value(ref, store.local) for method, ref in file.examples.items()}
    if command:
        with device_program(command, file.path, file.data_files, {}) as program:
            return verify_program(program, examples, file.bounds)
    try:
        return verify_file(file.path, examples, file.bounds, file.data_files)
    except (RuntimeError, ValueError, KeyError) as error:
        raise PteforgeError(f"the runtime cannot run {file.path}: {error}") from error


def _read_verifiable(file: Path) -> _Verifiable:
    """A file that pteforge made, as its provenance describes it; raises InputError or FileFormatError."""
    from ...artifacts.ref import ArtifactRef
    from ...configs.verification import VerifyBounds
    from ...formats.pte.reader import open_pte
    from ...tasks.results.delivered import NO_PROVENANCE, Delivered, upgraded

    open_pte(file)  # raises if it is not a .pte
    path, data = file.with_suffix(".json"), file.with_suffix(".ptd")
    try:
        written = upgraded(json.loads(read_sidecar(path)))
        delivered = Delivered.of_provenance(written)
        bounds = VerifyBounds.model_validate(written["bounds"])
        if delivered.figures and delivered.figures.drawn:  # not held to the bounds
            bounds = bounds.model_copy(update={"drawn_inputs": 0})
        examples = {
            role.removeprefix("examples/"): ArtifactRef.from_json(value)
            for role, value in written["artifacts"].items()
            if role.startswith("examples/")
        }
    except FileNotFoundError as error:
        raise InputError(f"there is no {path}: verify needs the provenance that `pteforge export` writes") from error
    except (OSError, *NO_PROVENANCE) as error:
        raise InputError(f"{path} is not a provenance that `pteforge export` wrote: {error}") from error
    if digest := delivered.digests.get("ptd"):
        check_digest(file, data, digest)
    return _Verifiable(file, (data,) if digest else (), bounds, examples)


def _print_figures(figures: Figures, prefix: str = "", *, err: bool = False) -> None:
    for name, worst in (figures.payloads or figures.methods).items():
        line = (
            f"{prefix}{name}: verified on {worst.cases} outputs; max abs error {worst.max_abs_error:.3g}, "
            f"max relative error {worst.max_relative_error:.3g}, SQNR {format_sqnr(worst)}"
        )
        typer.echo(line, err=err)
    for name, reason in figures.not_run.items():
        typer.echo(f"{prefix}{name}: not run: it {reason}", err=err)
