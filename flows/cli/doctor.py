"""`pteforge doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError, first_line, printable
from ..prefect.settings import quiet_console, server_configured
from ..run.interrupt import leave_interrupted
from ..run.request import ExportRequest
from .options import AS_JSON, takes_request
from .terminal import open_console, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from ...tasks.results.diagnosis import Diagnosis, Finding
    from ..run.examine import ModelDiagnosis


@takes_request("recipes", "out", "until", "debug", "on", "publish", optional=True)
def doctor(
    request: ExportRequest | None,
    *,
    server: Annotated[
        bool, typer.Option("--server", help="Look at the Prefect server, its schedules and workers instead of a zoo.")
    ] = False,
    as_json: AS_JSON = False,
) -> None:
    """Tell whether torch.export takes the models of a zoo, with and without strict mode, and what to do if not.

    Makes no files. Only what is not cached runs. Exits with 1 if a method cannot be exported as its model is set.
    """
    if server == (request is not None):
        raise InputError("give either a zoo, or --server")
    if request is None:
        _check_server(as_json=as_json)
        return
    from ..prefect.run_flow import open_configured
    from ..run.examine import examine
    from .progress import observe

    try:
        with open_configured(request, writes=False) as session, observe(session, quiet=as_json):
            diagnoses = examine(session)
    except KeyboardInterrupt:
        leave_interrupted()
    well = all(each.well for each in diagnoses)
    if as_json:
        print_json({"zoo": session.zoo, "well": well, "models": {each.model: each.to_json() for each in diagnoses}})
    else:
        _print(open_console(), diagnoses)
    raise typer.Exit(0 if well else 1)


def _check_server(*, as_json: bool) -> None:
    """Looks at the configured server; exits with 1 if something is wrong."""
    if not server_configured():
        raise InputError("there is no Prefect server to look at; set PREFECT_API_URL")
    quiet_console()
    from ..prefect.server_health import check_server

    checks = check_server()
    if as_json:
        print_json({"well": all(check.well for check in checks), "checks": [vars(check) for check in checks]})
    else:
        for check in checks:
            style = "green" if check.well else "bold red"
            open_console().print(printable(f"{check.name}: {check.found}"), style=style, soft_wrap=True)
    raise typer.Exit(0 if all(check.well for check in checks) else 1)


def _print(console: Console, diagnoses: Sequence[ModelDiagnosis]) -> None:
    from rich.text import Text

    from ...tasks.results.diagnosis import Diagnosis
    from ..reports.figures_text import open_table

    table = open_table(("model", "method", "strict", "without strict mode", "in strict mode", "draft export"))
    for each in diagnoses:
        for method, diagnosis in each.methods.items():
            cells = _cells(diagnosis) if isinstance(diagnosis, Diagnosis) else ("", Text("not built", "bold red"))
            table.add_row(each.model, method, *cells)
    console.print(table)
    for each in diagnoses:
        for method, diagnosis in each.methods.items():
            name = printable(f"{each.model} {method}".rstrip())
            if isinstance(diagnosis, Diagnosis):
                _print_findings(console, name, diagnosis)
            else:
                console.print(f"{name} {diagnosis.step}: {diagnosis.problem}\n", style="bold red", soft_wrap=True)
    methods = [diagnosis for each in diagnoses for diagnosis in each.methods.values()]
    ill = sum(not (isinstance(diagnosis, Diagnosis) and diagnosis.well) for diagnosis in methods)
    console.print(
        f"{len(methods)} method{'s' * (len(methods) != 1)} of {len(diagnoses)} model{'s' * (len(diagnoses) != 1)}: "
        + (f"{ill} not well" if ill else "all well")
    )


def _cells(diagnosis: Diagnosis) -> Iterator[str | Text]:
    from rich.text import Text

    yield str(diagnosis.strict).lower()
    for attempt in diagnosis.attempts:
        style = "green" if attempt.exported else "bold red" if attempt.strict == diagnosis.strict else "dim"
        yield Text("exports" if attempt.exported else "refused", style)
    count = len(diagnosis.drafted)
    yield "failed" if diagnosis.draft else f"{count} finding{'s' * (count != 1)}" if count else "sound"


def _print_findings(console: Console, name: str, diagnosis: Diagnosis) -> None:
    others = [finding for finding in diagnosis.findings if finding not in diagnosis.relevant]
    if not diagnosis.attempt.exported:
        problem = first_line(diagnosis.attempt.problem)
        console.print(f"{name} is refused: {problem}", style="bold red", soft_wrap=True)
    elif diagnosis.relevant:
        console.print(f"{name} is exported, but the program may be wrong:", style="bold red", soft_wrap=True)
    _print_text(console, diagnosis.relevant, "yellow")
    if others:
        other = "without strict mode" if diagnosis.strict else "in strict mode"
        console.print(f"{name} {other}, which is not what is set:", style="dim", soft_wrap=True)
        _print_text(console, others, "dim")
    if diagnosis.findings or not diagnosis.attempt.exported:
        console.print()


def _print_text(console: Console, findings: Sequence[Finding], style: str) -> None:
    from ...tasks.results.diagnosis import as_text

    if findings:
        console.print(as_text(findings), style=style, soft_wrap=True)
