"""Tables, pages and progress in Prefect's UI."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from prefect import artifacts, flow, get_client, get_run_logger
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter
from prefect.events import emit_event
from prefect.runtime import flow_run

from ...errors import first_line, printable
from ...tasks.lowering.bisection import Bisection
from ...tasks.results.delivered import Failure
from ...tasks.results.diagnosis import as_text
from ...tasks.results.tables import rungs_of
from ..reports.changes import Compared, compare
from ..reports.figures_text import markdown, markdown_table, relative
from ..reports.page import NAME
from ..run.outcome import ModelOutcome
from ..run.progress import ZooObserver
from ..run.session import Session
from .settings import local_run, send_what_is_queued

if TYPE_CHECKING:
    from ..releases.records import Published


def artifact_key(kind: str, name: str) -> str:
    """A valid key that is the same in every run, such as ``accuracy-resnet18``."""
    return f"{kind}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"


async def show_zoo(session: Session) -> None:
    """Adds or updates the summary of a zoo in the current run: release, failures, a table of files, changes."""
    key, description = artifact_key("zoo", session.zoo), f"The files of {markdown(session.zoo)}"
    text = "\n".join(await asyncio.to_thread(lambda: [*_summary(session)]))
    wanted = {"flow_run_id": {"any_": [flow_run.id]}, "key": {"any_": [key]}}
    async with get_client() as client:
        if earlier := await client.read_artifacts(artifact_filter=ArtifactFilter.model_validate(wanted)):
            await client.update_artifact(earlier[0].id, ArtifactUpdate(data=text))
            return
    await artifacts.acreate_markdown_artifact(text, key=key, description=description)


def announce(zoo: str, published: Published) -> None:
    """Emits `pteforge.published`, `.regression` if gates hold it back, or `.withdrawn` for files rolled back from."""
    what = "regression" if published.regressions else "withdrawn" if published.withdrawn else "published"
    why = {"reasons": published.reasons, "acceptance": published.acceptance}
    emit_event(
        f"pteforge.{what}",
        resource={"prefect.resource.id": f"pteforge.zoo.{printable(zoo)}", "prefect.resource.name": printable(zoo)},
        payload={**json.loads(published.encode()), **why},
    )


async def show_findings(outcome: ModelOutcome) -> None:
    """Adds the causes of a model's failures, with the ways out, to the current run's log and as a page."""
    failures = {recipe.failure.step: recipe.failure for recipe in outcome.recipes if recipe.failure}
    explained = {step: failure for step, failure in failures.items() if failure.findings}
    if not explained:
        return
    for step, failure in explained.items():
        get_run_logger().error("%s", printable(f"{step}:\n{as_text(failure.findings)}", keep="\n"))
    key = artifact_key("diagnosis", outcome.model)
    description = f"Why {markdown(outcome.model)} cannot be lowered, and the ways out"
    text = "\n".join(_diagnosis(outcome.model, explained))
    await artifacts.acreate_markdown_artifact(text, key=key, description=description)


async def show_tables(outcome: ModelOutcome) -> None:
    """Adds tables about a model to the current run: what is known of its files, and each program against eager."""
    facts = [
        {"recipe": result.recipe, "about": fact.area, "name": fact.name, "value": fact.text, "note": fact.note}
        for result in outcome.recipes
        for fact in result.facts()
    ]
    rungs = [
        {"recipe": result.recipe} | dict(zip(table.titles, row, strict=True))
        for result in outcome.recipes
        if result.ladder
        for table in [rungs_of(result.ladder)]
        for row in table.rows
    ]
    name = markdown(outcome.model)
    tables = {f"The files of {name}": ("facts", facts), f"{name}: each program against eager": ("numerics", rungs)}
    for description, (kind, rows) in tables.items():
        if rows:
            await artifacts.acreate_table_artifact(rows, key=artifact_key(kind, outcome.model), description=description)


def show_bisection(bisection: Bisection, plot: bytes | None) -> None:
    """Adds tables, and the plot as a data URL, in a flow that does nothing else: artifacts belong to runs."""
    key, description = artifact_key("bisect", bisection.name), f"Where {markdown(bisection.name)} loses quality"

    @flow(name="bisect", flow_run_name=printable(f"bisect {bisection.name}"), persist_result=False)
    def show() -> None:
        artifacts.create_markdown_artifact("\n".join(_page(bisection)), key=key, description=description)
        if plot:
            url = f"data:image/png;base64,{b64encode(plot).decode()}"
            artifacts.create_image_artifact(url, key=f"{key}-plot", description=description)

    with local_run(server=None):
        show()
        send_what_is_queued()


def _summary(session: Session) -> Iterator[str]:
    outcome, release = session.progress.outcome(), session.recording.release
    failed = f", {len(outcome.failures)} failed" if outcome.failures else ""
    yield f"# {markdown(outcome.zoo)}\n"
    if not session.progress.complete:
        yield f"**{len(outcome.models)} of {len(session.models)} models are done.**\n"
    yield f"{outcome.summary}{failed}; {outcome.ran} stages run, {outcome.cached} cached.\n"
    if release:
        released = markdown(release.summary)
        if release.release and release.url.startswith(("http://", "https://")):
            released = f"[{released}]({release.url}/releases/{release.release}.json)"
        yield f"{'**Held back**: ' if release.held_back else ''}{released}\n"
        yield from (f"- {markdown(reason)}" for reason in release.reasons)
        yield ""
    if session.progress.complete and not session.request.until:
        yield f"Page: {markdown(str(relative(session.out / NAME)))} on {markdown(session.identity['host'])}\n"
    if outcome.failures:
        yield "## Failures\n"
    for model in outcome.models:
        failures = [recipe.failure for recipe in model.recipes if recipe.failure]
        for failure in {(failure.step, failure.problem): failure for failure in failures}.values():
            yield f"- {markdown(f'{failure.named(model.model)}: {first_line(failure.problem)}')}"
    since = "; in parentheses, changes since the last run" if session.recording.previous else ""
    yield f"\n## Files\n\nFor each file: status, size, SQNR against eager{since}.\n"
    recipes = dict.fromkeys(recipe.recipe for recipe in outcome.recipes)
    rows = []
    for name in (model.name for model in session.models):
        done, run = session.progress.outcomes.get(name), session.prefect.flow_runs.get(name)
        files = compare(done.recipes if done else (), session.recording.previous)
        cells = {file.result.recipe: _cell(session, file) for file in files}
        worse = any(file.state == "failed" for file in files)
        changed = any(file.state in ("changed", "new") for file in files)
        link = f"[{markdown(name)}](/runs/flow-run/{run})" if run else markdown(name)
        row = [link, *(markdown(cells.get(recipe, "")) for recipe in recipes)]
        rows.append(((not worse, not changed, not done), row))
    ordered = (row for _, row in sorted(rows, key=lambda ranked: ranked[0]))
    yield from markdown_table(["model", *map(markdown, recipes)], ordered)


def _diagnosis(model: str, failures: Mapping[str, Failure]) -> Iterator[str]:
    yield f"# {markdown(model)}\n"
    for step, failure in failures.items():
        yield f"## {markdown(step)}\n"
        yield f"{markdown(first_line(failure.problem))}\n"
        for finding in failure.findings:
            if finding.where:
                yield f"{markdown(f'{finding.where}: {finding.code}' if finding.code else finding.where)}\n"
            yield f"{markdown(finding.problem)}\n"
            yield from (f"- {markdown(remedy)}" for remedy in finding.remedies)
            yield ""


def _cell(session: Session, file: Compared) -> str:
    """The result of a recipe and, in parentheses, how it differs from the last run."""
    result = file.result
    text = ", ".join((result.standing, *(fact.text for fact in result.columns.values() if fact.column <= _FEW)))
    change = file.change or ("new" if session.recording.previous and file.state == "new" else "")
    return f"{text} ({change})" if change else text


def _page(bisection: Bisection) -> Iterator[str]:
    yield f"# {markdown(bisection.name)}\n"
    for part in bisection.parts():
        if isinstance(part, str):
            yield from (f"{markdown(line)}\n" for line in part.splitlines())
        else:
            yield from markdown_table(list(map(markdown, part.titles)), (map(markdown, row) for row in part.rows))
            yield ""


_FEW = 2  # the highest rank of columns that are in a cell
_PAUSE = 5.0  # seconds between updates
_PATIENCE = 10.0  # seconds for the last update


@asynccontextmanager
async def progress_shown(session: Session) -> AsyncIterator[None]:
    """Shows the session's progress in the flow run, and logs each model that has ended; work never waits for it."""
    ended, log = asyncio.Event(), _Log(session)
    session.progress.observe(log)

    def log_outcomes() -> None:
        for outcome in session.progress.outcomes.values():
            log.completed(outcome)

    await asyncio.to_thread(log_outcomes)
    showing = asyncio.create_task(_update_progress(session, ended))
    try:
        yield
    finally:
        ended.set()
        with session.prefect.optional():
            await asyncio.wait_for(showing, _PATIENCE)


async def _update_progress(session: Session, ended: asyncio.Event) -> None:
    """Updates the progress, and the summary, which links to the flow runs that lower models."""
    key, shown, pace = artifact_key("progress", session.zoo), (-1, -1, -1), session.progress.pace
    await asyncio.to_thread(session.expect_stages)
    artifact = await artifacts.acreate_progress_artifact(0.0, key=key, description="No stage is done yet")
    pause = _PAUSE
    while not ended.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), pause)
        began = time.monotonic()
        if ended.is_set() or shown == (shown := (pace.done, pace.known, len(session.progress.outcomes))):
            continue
        done, known, completed = shown
        models = f"{completed} of {len(session.models)} models"
        await artifacts.aupdate_progress_artifact(
            artifact, 100 * done / max(known, 1), f"{done} of {known} known stages and {models} done"
        )
        if session.part_of is None:
            await show_zoo(session)
        pause = max(_PAUSE, 20 * (time.monotonic() - began))  # an update takes a while for a large zoo
    complete = "" if session.progress.complete else "; some models were not reached"
    await artifacts.aupdate_progress_artifact(artifact, 100.0, f"{pace.done} stages done{complete}")


class _Log(ZooObserver):
    """Logs the outcome of each model in the current flow run: each file, and how long its stages ran."""

    def __init__(self, session: Session) -> None:
        self._session, self._logger, self._logged = session, get_run_logger(), 0
        self._lock = threading.Lock()  # so that lines are in the order of their numbers

    def completed(self, outcome: ModelOutcome) -> None:
        session = self._session
        with session.prefect.optional(), self._lock:
            failed = [recipe.failure for recipe in outcome.recipes if recipe.failure]
            seconds = sum(stage.seconds for stage in outcome.stages if stage.status == "ran")
            compared = compare(outcome.recipes, session.recording.previous)
            files = "; ".join(f"{file.result.recipe} {_cell(session, file)}" for file in compared)
            self._logged += 1
            where = f"{self._logged}/{len(session.models)} {outcome.model} ({outcome.ran} stages, {seconds:.1f} s)"
            problem = f": {first_line(failed[0].problem)}" if failed else ""
            level = logging.ERROR if failed else logging.INFO
            self._logger.log(level, "%s", printable(f"{where}: {files}{problem}"))
