"""`pteforge run`."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InputError, convert_os_errors, first_line, printable
from . import completion
from .options import AS_JSON, DATA, argument, check_found, check_output, data_files, option, split_names
from .terminal import print_json, quiet

if TYPE_CHECKING:
    from ...formats.pte.contents import Method, ValueSpec
    from ...runtime import LoadedProgram


def run_file(  # noqa: PLR0913 - one parameter per option
    file: Annotated[Path, argument("A .pte file.")],
    *,
    method: Annotated[str, typer.Option(help="Which method to run.", autocompletion=completion.methods)] = "forward",
    inputs: Annotated[
        Path | None,
        option("Inputs in order, as numpy.savez writes them; random if left out.", "FILE.npz", name="--input"),
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
    from ...formats.pte.reader import open_pte
    from ...runtime import load

    pte = open_pte(file)
    check_output(output)
    called = next((candidate for candidate in pte.methods if candidate.name == method), None)
    if called is None:
        raise InputError(f"{file} has no method {method!r}; it has {', '.join(m.name for m in pte.methods)}")
    weights = data_files(file, data)
    if not data and not is_fat(pte):  # containers have the digests of a fat file's weights
        check_found(file, weights)
    with quiet():
        values = _read(inputs, called) if inputs else _random_inputs(called, seed)
        import executorch.runtime  # noqa: F401 - takes seconds that are not the file's

        began = time.perf_counter()
        loaded = load(file, prefer=split_names(prefer), exclude=split_names(exclude), data_files=weights)
        load_seconds = time.perf_counter() - began
        done = loaded.timed_run(method, values)
    outputs = done.outputs
    load_time, run_time = 1000 * (load_seconds + done.load_seconds), 1000 * done.run_seconds
    if output:
        _write(output, outputs)
    described = [_describe(position, value) for position, value in enumerate(outputs)]
    if as_json:
        print_json(
            {
                "payload": loaded.payload,
                "report": loaded.report,
                "outputs": described,
                "milliseconds": {"load": load_time, "run": run_time},
            }
        )
        return
    typer.echo(f"load {load_time:.3f} ms, {printable(method)} {run_time:.3f} ms", err=True)
    _print_report(loaded)
    typer.echo("\n".join(map(_line, described)))


def _print_report(loaded: LoadedProgram) -> None:
    """Names the payload that ran, and why those before it did not."""
    if loaded.payload is not None:
        passed_over = [line for line in loaded.report if ": passed over: " in line]
        for line in (*passed_over, f"{loaded.payload}: ran"):
            typer.echo(printable(line), err=True)


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


def _read(path: Path, method: Method) -> list[Any]:
    import numpy as np
    import torch

    from ...artifacts.files import open_input
    from ...formats.pte.contents import TensorSpec, shape_problem

    try:
        with open_input(path) as file, np.load(file, allow_pickle=False) as arrays:
            values = [torch.from_numpy(arrays[name]) for name in arrays.files]
    except (OSError, ValueError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as the arrays that numpy.savez writes: {error}") from error
    wanted = [spec for spec in method.inputs if isinstance(spec, TensorSpec)]
    if len(values) != len(wanted):
        raise InputError(f"{path} has {len(values)} arrays; method {method.name!r} takes {len(wanted)} tensors")
    for position, (value, spec) in enumerate(zip(values, wanted, strict=True)):
        values[position] = value.to(getattr(torch, spec.dtype))
        if problem := shape_problem(spec, value.shape):
            raise InputError(f"{path}: array {position} {problem}")
    tensors = iter(values)
    return [next(tensors) if isinstance(spec, TensorSpec) else spec.value for spec in method.inputs]


def _write(path: Path, outputs: list[Any]) -> None:
    import numpy as np
    import torch

    from ...artifacts.files import replace_file

    arrays = [
        (value.float() if value.dtype is torch.bfloat16 else value).numpy()
        if isinstance(value, torch.Tensor)
        else value
        for value in outputs
    ]
    content = io.BytesIO()  # numpy would add .npz to a path with another suffix
    np.savez(content, *arrays)
    with convert_os_errors(InputError, f"output cannot be written to {path}"):
        replace_file(path, content.getvalue(), path.parent)


def _describe(position: int, value: Any) -> dict[str, Any]:
    import torch

    if not isinstance(value, torch.Tensor):
        return {"output": position, "value": value}
    numbers = value.to(torch.float64)
    figures = {"min": numbers.min, "max": numbers.max, "mean": numbers.mean}
    return {
        "output": position,
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
