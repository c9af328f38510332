"""`pteforge bisect` and `doctor`: where a recipe loses quality, and whether models can be exported."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ...errors import InputError, convert_os_errors, first_line, printable
from ..prefect.settings import open_configured, quiet_console, server_configured
from ..reports.figures_text import open_table, table_of
from ..run.interrupt import leave_interrupted
from ..run.request import ExportRequest
from . import completion
from .options import AS_JSON, argument, flag, open_existing_store, option, takes_request
from .terminal import open_console, print_json, verbose

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from ...tasks.lowering.bisection import Bisection
    from ...tasks.results.delivered import Failure
    from ...tasks.results.diagnosis import Diagnosis
    from ..run.examine import ModelDiagnosis


_log = logging.getLogger(__name__)


@takes_request("bisect")
def bisect_recipe(
    request: ExportRequest,
    name: Annotated[str, argument("What to bisect.", "MODEL/RECIPE", complete=completion.files)],
    *,
    drop: Annotated[
        float | None,
        typer.Option(
            metavar="DB", min=0.1, help="A rung loses quality if its SQNR drops by more than this.", show_default="6"
        ),
    ] = None,
    plot: Annotated[Path | None, option("Plot SQNR by rung, and the worst operators.", "FILE.png")] = None,
    as_json: AS_JSON = False,
) -> None:
    """Find where a recipe loses quality: in which program on the way to the file, and at which of its operators.

    Only stages that are not cached run. Verification is skipped, so bisect also works on a file that fails it.
    """
    from ...tasks.results.numerics import DROP_DB
    from ..run.examine import bisect, check_plot, draw
    from .progress import observe

    model, _, recipe = name.partition("/")
    if not model or not recipe or any(character in name for character in "*?[,"):
        raise InputError(f"{name!r} is not MODEL/RECIPE, the name of a model of the zoo and of one of its recipes")
    if plot:
        check_plot(plot)
    request = request.model_copy(update={"models": model, "recipes": recipe})
    try:
        with open_configured(request, writes=False) as session, observe(session, quiet=as_json):
            bisection = bisect(session, drop or DROP_DB)
    except KeyboardInterrupt:
        leave_interrupted()
    if plot:
        with convert_os_errors(InputError, f"the plot cannot be written to {plot}"):
            plot.write_bytes(draw(bisection))
    if server_configured():
        _publish(bisection)
    if as_json:
        print_json(bisection.to_json())
    else:
        _print_bisection(open_console(), bisection)


def _publish(bisection: Bisection) -> None:
    """Adds the result to Prefect's artifacts; only logs a failure, since the terminal shows the result anyway."""
    if not verbose():
        quiet_console()
    try:
        from ..prefect.pages import show_bisection
        from ..run.examine import draw

        show_bisection(bisection, draw(bisection) if find_spec("matplotlib") else None)
    except Exception as error:  # noqa: BLE001 - whatever Prefect raises
        _log.warning("Prefect could not take the result (is its server there?): %s: %s", type(error).__name__, error)


def _print_bisection(console: Console, bisection: Bisection) -> None:
    for part in bisection.parts():
        console.print(part if isinstance(part, str) else table_of(part), soft_wrap=isinstance(part, str))


@takes_request("doctor", optional=True)
def doctor(
    request: ExportRequest | None,
    *,
    server: Annotated[
        bool, flag("--server", "Look at the Prefect server, its schedules and workers instead of a zoo.")
    ] = False,
    toolchain: Annotated[
        bool,
        flag("--toolchain", "Look at torch and ExecuTorch instead of a zoo: what is mended in them, and what not."),
    ] = False,
    probe: Annotated[
        bool, flag("--probe", "With --toolchain, lower the smallest case of each patch with and without it: minutes.")
    ] = False,
    as_json: AS_JSON = False,
) -> None:
    """Show whether torch.export takes the models of a zoo, with and without strict mode, and what to do if not.

    Makes no files. Only what is not cached runs. Exits with 1 if a method cannot be exported as its model is set.
    """
    if (request is not None) + server + toolchain != 1:
        raise InputError("give either a zoo, --server or --toolchain")
    if probe and not toolchain:
        raise InputError("--probe is about a toolchain: give it with --toolchain")
    if request is None:
        if server:
            _check_server(as_json=as_json)
        _check_toolchain(probes=probe, as_json=as_json)
    from ..run.examine import examine
    from .progress import observe

    try:
        with open_configured(request, writes=False) as session, observe(session, quiet=as_json):
            diagnoses = examine(session)
    except KeyboardInterrupt:
        leave_interrupted()
    well = all(diagnosis.well for diagnosis in diagnoses)
    if as_json:
        models = {diagnosis.model: diagnosis.to_json() for diagnosis in diagnoses}
        print_json({"zoo": session.zoo, "well": well, "models": models})
    else:
        _print_diagnoses(open_console(), diagnoses)
    raise typer.Exit(0 if well else 1)


def _check_server(*, as_json: bool) -> NoReturn:
    if not server_configured():
        raise InputError("there is no Prefect server to look at; set PREFECT_API_URL")
    quiet_console()
    from ..prefect.server import check_server

    checks = check_server()
    well = all(check.well for check in checks)
    if as_json:
        print_json({"well": well, "checks": [vars(check) for check in checks]})
    else:
        for check in checks:
            style = "green" if check.well else "bold red"
            open_console().print(printable(f"{check.name}: {check.found}"), style=style, soft_wrap=True)
    raise typer.Exit(0 if well else 1)


def _check_toolchain(*, probes: bool, as_json: bool) -> NoReturn:
    from ...tasks.lowering.toolchain import probe, toolchain_of

    toolchain = toolchain_of()
    if probes:
        toolchain = probe(toolchain, Path(sys.executable), open_existing_store(None).local.root / "toolchains")
    if as_json:
        print_json({"well": toolchain.well, **toolchain.to_json()})
    else:
        open_console().print(printable(str(toolchain), keep="\n"), soft_wrap=True)
    raise typer.Exit(0 if toolchain.well else 1)


def _print_diagnoses(console: Console, diagnoses: Sequence[ModelDiagnosis]) -> None:
    from ...tasks.results.diagnosis import Diagnosis

    table = open_table(("model", "method", "strict", "without strict mode", "in strict mode", "draft export"))
    methods = [(of_model.model, *method) for of_model in diagnoses for method in of_model.methods.items()]
    for model, method, diagnosis in methods:
        table.add_row(model, method, *_diagnosis_cells(diagnosis))
    console.print(table)
    for model, method, diagnosis in methods:
        name = printable(f"{model} {method}".rstrip())
        if isinstance(diagnosis, Diagnosis):
            _print_findings(console, name, diagnosis)
        else:
            console.print(f"{name} {diagnosis.step}: {diagnosis.problem}\n", style="bold red", soft_wrap=True)
    ill = sum(not (isinstance(diagnosis, Diagnosis) and diagnosis.well) for _, _, diagnosis in methods)
    console.print(
        f"{len(methods)} method{'s' * (len(methods) != 1)} of {len(diagnoses)} model{'s' * (len(diagnoses) != 1)}: "
        + (f"{ill} not well" if ill else "all well")
    )


def _diagnosis_cells(diagnosis: Diagnosis | Failure) -> Iterator[str | Text]:
    from rich.text import Text

    from ...tasks.results.delivered import Failure

    if isinstance(diagnosis, Failure):
        yield from ("", Text("not built", "bold red"))
        return
    yield str(diagnosis.strict).lower()
    for attempt in diagnosis.attempts:
        style = "green" if attempt.exported else "bold red" if attempt.strict == diagnosis.strict else "dim"
        yield Text("exports" if attempt.exported else "refused", style)
    count = len(diagnosis.drafted)
    yield "failed" if diagnosis.draft else f"{count} finding{'s' * (count != 1)}" if count else "sound"


def _print_findings(console: Console, name: str, diagnosis: Diagnosis) -> None:
    from ...tasks.results.diagnosis import as_text

    if not diagnosis.attempt.exported:
        problem = first_line(diagnosis.attempt.problem)
        console.print(f"{name} is refused: {problem}", style="bold red", soft_wrap=True)
    elif diagnosis.relevant:
        console.print(f"{name} is exported, but the program may be wrong:", style="bold red", soft_wrap=True)
    if diagnosis.relevant:
        console.print(as_text(diagnosis.relevant), style="yellow", soft_wrap=True)
    if others := [finding for finding in diagnosis.findings if finding not in diagnosis.relevant]:
        other = "without strict mode" if diagnosis.strict else "in strict mode"
        console.print(f"{name} {other}, which is not what is set:", style="dim", soft_wrap=True)
        console.print(as_text(others), style="dim", soft_wrap=True)
    if diagnosis.findings or not diagnosis.attempt.exported:
        console.print()
