"""Numerics on Prefect's pages: ladders of a model's files as a table, and where a recipe loses quality."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

from prefect import flow
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from ..tasks.figures import Worst
from ..tasks.numerics import Rung
from .artifact_key import artifact_key
from .bisect import Bisection
from .figures_text import FIGURES, format_figures
from .outcome import ModelOutcome
from .prefect_settings import local_run, send_what_is_queued

_SHOWN = 20


def show_ladders(outcome: ModelOutcome) -> None:
    """Adds a table to the current run: a row for each rung of each recipe of the model that has a ladder."""
    rows: list[dict[str, Any]] = [
        {"recipe": recipe.recipe, **_row(rung)}
        for recipe in outcome.recipes
        if recipe.ladder
        for rung in recipe.ladder.rungs
    ]
    if rows:
        key = artifact_key("numerics", outcome.model)
        create_table_artifact(rows, key=key, description=f"{outcome.model}: each program against eager")


def show_bisection(found: Bisection, drawing: bytes | None) -> None:
    """Adds a page of tables, and the drawing as an image that has its bytes in its address.

    Artifacts belong to runs, so there is one: of a flow that does no more.
    """
    key, description = artifact_key("bisect", found.name), f"Where {found.name} loses quality"

    @flow(name="bisect", flow_run_name=f"bisect {found.name}", persist_result=False)
    def show() -> None:
        create_markdown_artifact("\n".join(_page(found)), key=key, description=description)
        if drawing:
            address = f"data:image/png;base64,{b64encode(drawing).decode()}"
            create_image_artifact(address, key=f"{key}-plot", description=description)

    with local_run(server=None):
        show()
        send_what_is_queued()


def _row(rung: Rung) -> dict[str, Any]:
    return {"rung": rung.label, "method": rung.method, **_figures(rung.figures), "problem": rung.problem}


def _figures(worst: Worst | None) -> dict[str, Any]:
    return dict(zip(FIGURES, format_figures(worst) if worst else [None] * len(FIGURES), strict=True))


def _page(found: Bisection) -> Iterator[str]:
    loss = found.loss
    yield f"# {found.name}\n"
    yield f"**{loss.rung.label}** (method {loss.rung.method}) {loss.reason}.\n" if loss else "Loses no quality.\n"
    yield from _table([_row(rung) for rung in found.ladder.rungs])
    if found.nodes:
        yield f"\n## Operators that lose most in {loss.rung.label}\n" if loss else ""
        yield from _table(
            [
                {
                    "source": " + ".join(node.sources),
                    "operator": node.operator,
                    **_figures(node.own),
                    "module": node.module,
                    "line": node.line,
                    "problem": node.problem,
                }
                for node in found.nodes.losing[:_SHOWN]
            ]
        )


def _table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    names = list(rows[0]) if rows else []
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        cells = ("" if value is None else str(value).replace("|", "\\|") for value in row.values())
        yield f"| {' | '.join(cells)} |"
