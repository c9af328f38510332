"""`pteforge verify`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError, ObjectMissing, PteforgeError
from .options import AS_JSON, STORE, check_digest, open_existing_store, option
from .terminal import print_json, quiet

if TYPE_CHECKING:
    from ...artifacts.ref import ArtifactRef
    from ...artifacts.store import Store
    from ...configs.verification import VerifyBounds
    from ...tasks.results.figures import Figures


def verify_files(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help=".pte files that pteforge made, or folders of such.")
    ],
    *,
    device: Annotated[
        str,
        option(
            "Run them elsewhere: a command that takes the arguments of nfat_run, and does there what it does.",
            "COMMAND",
            False,
        ),
    ] = "",
    store: STORE = None,
    as_json: AS_JSON = False,
) -> None:
    """Run produced files again on the inputs they were verified with, and compare their outputs with eager's.

    The inputs and eager's outputs come from the store that the files were made with. One that fails does not keep the
    others from being verified.
    """
    command = _words(device)
    several = len(files) > 1 or files[0].is_dir()
    made = [_read(file) for file in _expanded(files)]
    with open_existing_store(store) as opened:
        for each in made:
            _fetch(each, opened)
        if not several:
            with quiet():
                figures = _verify(made[0], opened, command)
            if as_json:
                print_json(figures.to_json())
            else:
                _print(figures)
            return
        verified, failed = _verify_all(made, opened, command, show=not as_json)
    if as_json:
        done = {name: each.to_json() for name, each in verified.items()}
        print_json({"verified": done, "failed": failed})
    else:
        typer.echo(f"{len(verified)} files verified" + (f", {len(failed)} failed" if failed else ""))
    if failed:
        raise typer.Exit(1)


def _verify_all(
    made: Sequence[_Made], store: Store, command: Sequence[str], *, show: bool
) -> tuple[dict[str, Figures], dict[str, str]]:
    """Figures of files that pass, and messages of those that do not, by name; says so of each as soon as it ends."""
    verified: dict[str, Figures] = {}
    failed: dict[str, str] = {}
    for each in made:
        name = str(each.file)
        try:
            with quiet():
                verified[name] = _verify(each, store, command)
        except InputError:
            raise
        except PteforgeError as error:
            failed[name] = str(error)
            typer.echo(f"{name}: {error}", err=True)
        else:
            if show:
                _print(verified[name], f"{name}: ")
    return verified, failed


def _expanded(paths: Sequence[Path]) -> list[Path]:
    """Files, and the `.pte` files of folders in the order of their names; raises InputError if one has none."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*.pte")) if path.is_dir() else [path]
        if not inside:
            raise InputError(f"there is no .pte file in {path}")
        files += inside
    return list(dict.fromkeys(files))


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise InputError(f"--device {command!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Made:
    """A file with its external data, its bounds, and its examples (inputs and eager's outputs) by method."""

    file: Path
    data_files: Sequence[Path]
    bounds: VerifyBounds
    examples: Mapping[str, ArtifactRef]


def _read(file: Path) -> _Made:
    """A file that pteforge made, as its provenance describes it; raises InputError or FileFormatError."""
    from ...formats.pte.reader import open_pte

    open_pte(file)  # raises if it is not a .pte
    bounds, examples, data = _provenance(file)
    if data is None:
        return _Made(file, (), bounds, examples)
    check_digest(file, file.with_suffix(".ptd"), data)
    return _Made(file, (file.with_suffix(".ptd"),), bounds, examples)


def _fetch(made: _Made, store: Store) -> None:
    """Gets the examples of a file; raises InputError if the store lacks them."""
    for ref in made.examples.values():
        try:
            store.fetch(ref)
        except ObjectMissing as error:
            raise InputError(
                f"the inputs that {made.file} was verified with are not in the store {store.url}; name its store "
                "with --store, or export the model again"
            ) from error


def _verify(made: _Made, store: Store, command: Sequence[str]) -> Figures:
    from ...tasks.codecs.values import load_value
    from ...tasks.verify.device import verify_on_device
    from ...tasks.verify.verification import verify_file

    examples = {method: load_value(ref, store.local) for method, ref in made.examples.items()}
    if command:
        return verify_on_device(command, made.file, examples, made.bounds, made.data_files)
    try:
        return verify_file(made.file, examples, made.bounds, made.data_files)
    except (RuntimeError, ValueError, KeyError) as error:
        raise PteforgeError(f"the runtime cannot run {made.file}: {error}") from error


def _provenance(file: Path) -> tuple[VerifyBounds, Mapping[str, ArtifactRef], str | None]:
    """Bounds, examples, and the SHA-256 of the `.ptd`, if there is any."""
    from ...artifacts.digest import parse_digest
    from ...artifacts.files import read_sidecar
    from ...artifacts.ref import ArtifactRef
    from ...configs.verification import VerifyBounds

    path = file.with_suffix(".json")
    try:
        written = json.loads(read_sidecar(path))
        bounds = VerifyBounds.model_validate(written["verification"]["bounds"])
        if written["verification"].get("figures", {}).get("drawn"):  # they were measured, and not held to the bounds
            bounds = bounds.model_copy(update={"drawn_inputs": 0})
        examples = {
            role.removeprefix("examples/"): ArtifactRef.from_json(value)
            for role, value in written["artifacts"].items()
            if role.startswith("examples/")
        }
        return bounds, examples, written["data"] and parse_digest(written["data"]["sha256"])
    except FileNotFoundError as error:
        raise InputError(
            f"there is no {path}: verify needs the provenance that `pteforge export` writes next to a file"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a provenance that `pteforge export` wrote: {error}") from error


def _print(figures: Figures, prefix: str = "") -> None:
    from ..reports.figures_text import format_sqnr

    for name, worst in (figures.payloads or figures.methods).items():
        typer.echo(
            f"{prefix}{name}: verified on {worst.cases} outputs; max abs error {worst.max_abs_error:.3g}, "
            f"max relative error {worst.max_relative_error:.3g}, SQNR {format_sqnr(worst)}"
        )
    for name, reason in figures.not_run.items():
        typer.echo(f"{prefix}{name}: not run: it {reason}")
