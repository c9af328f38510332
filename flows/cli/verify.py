"""`pteforge verify`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...artifacts.digest import parse_digest
from ...artifacts.pte.reader import open_pte
from ...artifacts.ref import ArtifactRef
from ...artifacts.store import Store
from ...configs.verify_bounds import VerifyBounds
from ...errors import InputError, ObjectMissing, PteforgeError
from ...tasks.figures import Figures
from ...tasks.keys.versions import host_capability
from ...tasks.params import VerifyParams
from ..figures_text import format_sqnr
from .data_beside import check_digest
from .options import STORE, open_existing_store
from .quiet import quiet


def verify_file(
    file: Annotated[Path, typer.Argument(help="A .pte file that pteforge made.", show_default=False)],
    *,
    store: STORE = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Run a produced file again on the inputs it was verified with, and compare it with eager.

    The inputs and eager's outputs come from the store that the file was made with.
    """
    open_pte(file)  # says what is wrong with a file that is none
    provenance = _provenance(file)
    data_files = _data_files(file, provenance)
    with open_existing_store(store) as opened, quiet():
        figures = _verify(file, data_files, provenance, opened)
    _show(figures, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Provenance:
    """What verifying again takes.

    Attributes:
        bounds: the recipe's.
        examples: method name to its inputs and eager's outputs.
        data: SHA-256 of the `.ptd` file beside the file, where there is one.
    """

    bounds: VerifyBounds
    examples: Mapping[str, ArtifactRef]
    data: str | None


def _verify(file: Path, data_files: Sequence[Path], provenance: _Provenance, store: Store) -> Figures:
    from ...artifacts.programs.values import load_value  # noqa: PLC0415 - imports torch
    from ...tasks.stages.verify import verify_file as verify_on_runtime  # noqa: PLC0415 - imports the runtime

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
    try:
        params = VerifyParams(bounds=provenance.bounds, host=host_capability())
        return verify_on_runtime(file, examples, params, data_files)
    except (RuntimeError, ValueError, KeyError) as error:
        raise PteforgeError(f"the runtime cannot run {file}: {error}") from error


def _data_files(file: Path, provenance: _Provenance) -> tuple[Path, ...]:
    """The `.ptd` that the file was made with, if any; raises InputError where it is another one, or not there."""
    if provenance.data is None:
        return ()
    path = file.with_suffix(".ptd")
    check_digest(file, path, provenance.data)
    return (path,)


def _provenance(file: Path) -> _Provenance:
    path = file.with_suffix(".json")
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
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
            f"there is no {path}: verify needs the provenance that `pteforge export` writes beside a file"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a provenance that `pteforge export` wrote: {error}") from error


def _show(figures: Figures, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(figures.to_json(), indent=2))
        return
    for name, worst in (figures.payloads or figures.methods).items():
        typer.echo(
            f"{name}: verified on {worst.cases} outputs; max abs error {worst.max_abs_error:.3g}, "
            f"max relative error {worst.max_relative_error:.3g}, SQNR {format_sqnr(worst)}"
        )
    for name, why in figures.not_run.items():
        typer.echo(f"{name}: not run: it {why}")
