"""`pteforge verify`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import InputError, ObjectMissing, PteforgeError
from .options import AS_JSON, STORE, open_existing_store
from .pte_files import check_digest
from .terminal import print_json, quiet

if TYPE_CHECKING:
    from ...artifacts.ref import ArtifactRef
    from ...artifacts.store import Store
    from ...configs.verification import VerifyBounds
    from ...tasks.figures import Figures


def verify_file(
    file: Annotated[Path, typer.Argument(help="A .pte file that pteforge made.", show_default=False)],
    *,
    device: Annotated[
        str,
        typer.Option(
            help="Run it elsewhere: a command that takes the arguments of nfat_run, and does there what it does.",
            metavar="COMMAND",
            show_default=False,
        ),
    ] = "",
    store: STORE = None,
    as_json: AS_JSON = False,
) -> None:
    """Run a produced file again on the inputs it was verified with, and compare its outputs with eager's.

    The inputs and eager's outputs come from the store that the file was made with.
    """
    from ...formats.pte.reader import open_pte

    open_pte(file)  # raises if it is not a .pte
    command = _words(device)
    provenance = _provenance(file)
    data_files = []
    if provenance.data:
        data_files.append(file.with_suffix(".ptd"))
        check_digest(file, data_files[0], provenance.data)
    with open_existing_store(store) as opened, quiet():
        figures = _verify(file, data_files, provenance, opened, command)
    if as_json:
        print_json(figures.to_json())
    else:
        _print(figures)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise InputError(f"--device {command!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Provenance:
    """A file's bounds, its examples (inputs and eager's outputs) by method, and the SHA-256 of its `.ptd`, if any."""

    bounds: VerifyBounds
    examples: Mapping[str, ArtifactRef]
    data: str | None


def _verify(
    file: Path, data_files: Sequence[Path], provenance: _Provenance, store: Store, command: Sequence[str]
) -> Figures:
    from ...tasks.codecs.values import load_value
    from ...tasks.programs.device import verify_on_device
    from ...tasks.programs.verification import verify_file as verify_on_runtime

    examples: dict[str, Any] = {}
    for method, ref in provenance.examples.items():
        try:
            store.fetch(ref)
        except ObjectMissing as error:
            raise InputError(
                f"the inputs that {file} was verified with are not in the store {store.url}; name its store "
                "with --store, or export the model again"
            ) from error
        examples[method] = load_value(ref, store.local)
    if command:
        return verify_on_device(command, file, examples, provenance.bounds, data_files)
    try:
        return verify_on_runtime(file, examples, provenance.bounds, data_files)
    except (RuntimeError, ValueError, KeyError) as error:
        raise PteforgeError(f"the runtime cannot run {file}: {error}") from error


def _provenance(file: Path) -> _Provenance:
    from ...artifacts.digest import parse_digest
    from ...artifacts.opening import read_sidecar
    from ...artifacts.ref import ArtifactRef
    from ...configs.verification import VerifyBounds

    path = file.with_suffix(".json")
    try:
        written = json.loads(read_sidecar(path))
        return _Provenance(
            bounds=VerifyBounds.model_validate(written["verification"]["bounds"]),
            examples={
                role.removeprefix("examples/"): ArtifactRef.from_json(value)
                for role, value in written["artifacts"].items()
                if role.startswith("examples/")
            },
            data=written["data"] and parse_digest(written["data"]["sha256"]),
        )
    except FileNotFoundError as error:
        raise InputError(
            f"there is no {path}: verify needs the provenance that `pteforge export` writes next to a file"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a provenance that `pteforge export` wrote: {error}") from error


def _print(figures: Figures) -> None:
    from ..figures_text import format_sqnr

    for name, worst in (figures.payloads or figures.methods).items():
        typer.echo(
            f"{name}: verified on {worst.cases} outputs; max abs error {worst.max_abs_error:.3g}, "
            f"max relative error {worst.max_relative_error:.3g}, SQNR {format_sqnr(worst)}"
        )
    for name, reason in figures.not_run.items():
        typer.echo(f"{name}: not run: it {reason}")
