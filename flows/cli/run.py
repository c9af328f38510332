"""`pteforge run`."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ...artifacts.aside import replace_file
from ...artifacts.nfat.fat_file import is_fat
from ...artifacts.pte.contents import Method, ScalarSpec, TensorSpec
from ...artifacts.pte.reader import open_pte
from ...errors import InputError
from ...runtime import LoadedProgram, load
from ...runtime.signature import shape_problem
from .data_beside import check_found
from .fat_input import data_files, split_names
from .fat_output import check_output
from .options import DATA
from .printable import printable
from .quiet import quiet


def run_file(  # noqa: PLR0913 - a command has as many parameters as options
    file: Annotated[Path, typer.Argument(help="A .pte file.", show_default=False)],
    *,
    method: Annotated[str, typer.Option(help="Which method to run.")] = "forward",
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--input", metavar="FILE.npz", help="Inputs in order, as numpy.savez writes them; drawn if left out."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Write the outputs, in order.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of drawn inputs.")] = 0,
    prefer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Payloads of a fat file to try first.", show_default="by priority"),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Payloads of a fat file not to try.", show_default="none"),
    ] = None,
    data: DATA = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a method of a .pte file on this machine's ExecuTorch runtime; of a fat file, the first payload that fits."""
    pte = open_pte(file)
    if output:
        check_output(output)
    found = next((each for each in pte.methods if each.name == method), None)
    if found is None:
        raise InputError(f"{file} has no method {method!r}; it has {', '.join(m.name for m in pte.methods)}")
    outside = data_files(file, data)
    if not data and not is_fat(pte):  # of a fat file, the container says what payloads are
        check_found(file, outside)
    with quiet():
        values = _read(inputs, found) if inputs else _draw(found, seed)
        loaded = load(file, prefer=split_names(prefer), exclude=split_names(exclude), data_files=outside)
        outputs = loaded.run(method, values)
    if output:
        _write(output, outputs)
    described = [_describe(position, value) for position, value in enumerate(outputs)]
    if as_json:
        told = {"payload": loaded.payload, "report": loaded.report, "outputs": described}
        typer.echo(json.dumps(told, indent=2))
        return
    _print_report(loaded)
    typer.echo("\n".join(map(_line, described)))


def _print_report(loaded: LoadedProgram) -> None:
    """Which payload ran, and why none before it did."""
    if loaded.payload is not None:
        passed_over = [line for line in loaded.report if ": passed over: " in line]
        for line in (*passed_over, f"{loaded.payload}: ran"):
            typer.echo(printable(line), err=True)


def _draw(method: Method, seed: int) -> list[Any]:
    import torch  # noqa: PLC0415 - only this command needs it

    generator = torch.Generator().manual_seed(seed)
    values: list[Any] = []
    for spec in method.inputs:
        if isinstance(spec, ScalarSpec):
            values.append(spec.value)
            continue
        dtype = getattr(torch, spec.dtype)
        shape = list(spec.shape)
        if dtype.is_floating_point:
            values.append(torch.randn(shape, generator=generator).to(dtype))
        else:
            values.append(torch.randint(0, 2, shape, generator=generator).to(dtype))
    return values


def _read(path: Path, method: Method) -> list[Any]:
    import numpy as np  # noqa: PLC0415 - only this command needs it
    import torch  # noqa: PLC0415 - only this command needs it

    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            values = [torch.from_numpy(arrays[name]) for name in arrays.files]
    except (OSError, ValueError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as the arrays that numpy.savez writes: {error}") from error
    wanted = [spec for spec in method.inputs if isinstance(spec, TensorSpec)]
    if len(values) != len(wanted):
        raise InputError(f"{path} holds {len(values)} arrays; method {method.name!r} takes {len(wanted)} tensors")
    for position, (value, spec) in enumerate(zip(values, wanted, strict=True)):
        values[position] = value.to(getattr(torch, spec.dtype))
        if problem := shape_problem(spec, value.shape):
            raise InputError(f"{path}: array {position} {problem}")
    tensors = iter(values)
    return [next(tensors) if isinstance(spec, TensorSpec) else spec.value for spec in method.inputs]


def _write(path: Path, outputs: list[Any]) -> None:
    import numpy as np  # noqa: PLC0415 - only this command needs it
    import torch  # noqa: PLC0415 - only this command needs it

    arrays = [
        (value.float() if value.dtype is torch.bfloat16 else value).numpy()
        if isinstance(value, torch.Tensor)
        else value
        for value in outputs
    ]
    content = io.BytesIO()  # numpy would add .npz to a path that ends otherwise
    np.savez(content, *arrays)
    try:
        replace_file(path, content.getvalue(), path.parent)
    except OSError as error:
        raise InputError(f"output cannot be written to {path}: {error.strerror or error}") from error


def _describe(position: int, value: Any) -> dict[str, Any]:
    import torch  # noqa: PLC0415 - only this command needs it

    if not isinstance(value, torch.Tensor):
        return {"output": position, "value": value}
    numbers = value.to(torch.float64)
    return {
        "output": position,
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "min": numbers.min().item() if value.numel() else None,
        "max": numbers.max().item() if value.numel() else None,
        "mean": numbers.mean().item() if value.numel() else None,
        "first": numbers.flatten()[:6].tolist(),
    }


def _line(output: dict[str, Any]) -> str:
    if "value" in output:
        return f"output {output['output']}: {output['value']!r}"
    if output["min"] is None:
        return f"output {output['output']}: {output['dtype']} {output['shape']}, empty"
    first = ", ".join(f"{number:.6g}" for number in output["first"])
    return (
        f"output {output['output']}: {output['dtype']} {output['shape']}, min {output['min']:.6g}, "
        f"max {output['max']:.6g}, mean {output['mean']:.6g}, first [{first}]"
    )
