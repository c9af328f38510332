"""Runs of a zoo in other environments: its `toolchains`, each with a Python that has torch, ExecuTorch and pteforge."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

from ...artifacts.runs import RunRecord
from ...artifacts.store import Store
from ...errors import InputError, StoreError, first_line
from ...tasks.lowering.toolchain import Toolchain, probe, toolchain_of
from ...tasks.results.delivered import Delivered, Failure
from ...tasks.upstream import TESTED
from ..releases.difference import FileDifference, compare, find_side
from ..reports.comparison import Limit
from ..reports.snapshot import PAYLOAD_VERSION
from .interrupt import INTERRUPTED
from .request import ExportRequest
from .select import find_toolchain
from .session import Session, load
from .zoo import publish_again

_log = logging.getLogger(__name__)
COMMAND = ("-c", "from pteforge.flows.cli import main; main()")
_LOOK = 0.5  # seconds
_STDERR = 2  # of the process, whatever has replaced `sys.stderr`


Part = tuple[RunRecord | None, Failure]
"""The record of a run that is a part of another one, and why it lacks what it lacks."""


def lower_elsewhere(session: Session, by_pool: Callable[[Session, str, Mapping[str, Any]], Part]) -> None:
    """Lowers recipes of other toolchains, each in a run of its own there; `Progress.elsewhere` has what came of them.

    Those parts of this run share its store, and release nothing. `by_pool` makes one for a changed request, on a pool.
    """
    lowered_by: dict[str, dict[str, list[str]]] = {}  # recipes by toolchain and model
    for model in session.models:
        for recipe, toolchain in model.elsewhere.items():
            if there := session.recording.cancelled(model.name, recipe):
                session.progress.add_elsewhere(model.name, [there])
                continue
            lowered_by.setdefault(toolchain, {}).setdefault(model.name, []).append(recipe)
    for toolchain, recipes in lowered_by.items():
        named = dict.fromkeys(name for names in recipes.values() for name in names)
        _log.info("with toolchain %s: %s of %s", toolchain, ", ".join(named), ", ".join(recipes))
        globs = {"models": ",".join(map(escape, recipes)), "recipes": ",".join(map(escape, named))}
        changes = {**globs, "toolchain": toolchain, "publish": None, "on": "local"}
        config = find_toolchain(session.loaded, toolchain)
        by = partial(by_pool, session, config.pool) if config.pool else partial(_by_python, session, config.python)
        record, failure = by(changes)
        for name, of_model in recipes.items():
            delivered = [_delivered(session, record, name, recipe, failure) for recipe in of_model]
            ran = record.models.get(name, ()) if record else ()
            session.progress.add_elsewhere(name, delivered, ran)


def _delivered(session: Session, record: RunRecord | None, model: str, recipe: str, failure: Failure) -> Delivered:
    """What came of a recipe in another run, whose file is written here unless it is there."""
    there = Delivered.of_run(record, model, recipe) if record else None
    if there is None:
        return Delivered(model, recipe, "failed", failure=failure)
    if there.path and there.path.is_relative_to(session.out):
        return there  # that run has written it
    try:
        return publish_again(session, there)
    except StoreError as error:
        return Delivered(model, recipe, "failed", failure=Failure.of("", error))


def _by_python(session: Session, python: Path | None, changes: Mapping[str, Any]) -> Part:
    part, request = uuid4().hex, session.request.model_copy(update={**changes, "store": session.store.url})
    command = [str(python), *COMMAND, "export", *arguments_of(request), "--quiet", "--part", f"{session.id}:{part}"]
    with subprocess.Popen(command, stdout=_STDERR) as process:  # noqa: S603 - the user's own Python
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK)
                if session.progress.aborted:
                    process.terminate()
        except BaseException:
            process.terminate()
            raise
    problem = f"{python}, its toolchain, did not make it (exit code {process.returncode})"
    return session.store.runs.take(part), Failure("", problem, "", bad_input=False)


@dataclass(frozen=True, slots=True)
class Crossed:
    """What came of files of one toolchain on the runtime of the other one."""

    # the lowest signal-to-noise ratio to eager of each file that runs there, in dB; None where all is equal
    ran: dict[str, float | None]
    failed: dict[str, str]  # why the others do not, or are wrong


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A zoo, exported with two toolchains: this process's, and the next one."""

    now: Toolchain
    next: Toolchain
    files: Sequence[FileDifference]  # what differs in each file, besides the toolchains
    # what came of the files of each toolchain on the runtime of the other, by ``now`` and ``next``; files are not
    # run on the runtimes of a pool's workers
    crossed: dict[str, Crossed]

    @classmethod
    def of(
        cls, request: ExportRequest, to: str, out: Path, open_store: Callable[[], Store], limits: Sequence[Limit]
    ) -> Rehearsal:
        """Exports, into the folders ``now`` and ``next`` of `out`; what that prints goes to standard error.

        `to` is a toolchain of the zoo, or the path of a Python. `open_store` is called once the store exists. Raises
        InputError if there is no such toolchain, or one of the two exported nothing; KeyboardInterrupt if it was
        interrupted.
        """
        config, here = find_toolchain(load(request), to), Path(sys.executable)
        now, following = toolchain_of(here), toolchain_of(config.python) if config.python else None
        # workers of a pool export for a run that is here
        asked = request if following else request.model_copy(update={"toolchain": to})
        runs = []
        for side, title, python, wanted in (
            ("now", now.title, here, request),
            ("next", following.title if following else f"workers of the pool {config.pool}", config.python, asked),
        ):
            sys.stderr.write(f"{side}: {title}\n")
            runs.append(_export(python or here, wanted, f"{request.zoo.stem} {side}", out / side, open_store))
        before, after = (find_side(run, open_store) for run in runs)
        files = [without_toolchain(file) for file in compare(before, after, limits)]
        if config.python is None or following is None:
            made = next((file.after.toolchain for file in files if file.after), {})
            following = Toolchain({name: text.partition(" ")[0] for name, text in made.items()}, (), {})
            crossed = {"next": _verify_on(here, out / "next", now.title, request.store)}
            return cls(now, following, files, crossed)
        if following.versions["executorch"] not in TESTED:
            sys.stderr.write("next: the smallest case of each patch is lowered, once for this release\n")
            try:
                following = probe(following, config.python, open_store().local.root / "toolchains")
            except InputError as error:
                sys.stderr.write(f"warning: {error}\n")
        crossed = {
            "now": _verify_on(config.python, out / "now", following.title, request.store),
            "next": _verify_on(here, out / "next", now.title, request.store),
        }
        return cls(now, following, files, crossed)

    @property
    def problems(self) -> list[str]:
        """A sentence for each file that is not made any more, or is worse than a limit."""
        gone = [f"{file.name}: {'; '.join(file.notes)}" for file in self.files if file.status == "removed"]
        return [sentence for file in self.files for sentence in file.regressions] + gone

    def lines(self) -> Iterator[str]:
        """Lines about what is not in the differences of files."""
        yield from self.next.changes_since(self.now)
        for made, on, crossed in ((self.now, self.next, "now"), (self.next, self.now, "next")):
            if (done := self.crossed.get(crossed)) is None:
                yield "files were not run on the other runtime, which workers of a pool have"
                continue
            versions = [each.versions.get("executorch", "unknown") for each in (made, on)]
            ran = ("1 file", "runs") if len(done.ran) == 1 else (f"{len(done.ran)} files", "run")
            yield f"{ran[0]} of ExecuTorch {versions[0]} {ran[1]} on the runtime of {versions[1]}"
            yield from (f"{name} does not: {first_line(problem)}" for name, problem in done.failed.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "toolchains": {"now": self.now.to_json(), "next": self.next.to_json()},
            "on_the_other_runtime": {made: asdict(crossed) for made, crossed in self.crossed.items()},
        }


def _export(python: Path, request: ExportRequest, zoo: str, out: Path, open_store: Callable[[], Store]) -> str:
    """Exports a zoo under another name with the pteforge of a Python; returns the id of the run."""

    def last_run() -> str:
        with suppress(InputError):  # there is no store yet
            return next((run.id for run in open_store().runs.of_zoo(zoo)), "")
        return ""

    before = last_run()
    overrides = (*request.overrides, f"name={zoo}", "publish=null")  # nothing is released
    rehearsed = request.model_copy(update={"out": out, "overrides": overrides, "on": "local"})
    command = [str(python), *COMMAND, "export", *arguments_of(rehearsed)]
    code = subprocess.run(command, stdout=_STDERR, check=False).returncode  # noqa: S603 - the user's own Python
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if (run := last_run()) == before:
        raise InputError(f"nothing was exported with {python}, for the reason above")
    return run


def without_toolchain(file: FileDifference) -> FileDifference:
    """Leaves out what another toolchain always changes: versions, also in the file, and the provenance's digest there.

    A file in which nothing else differs is equal.
    """
    in_file = ("general.provenance_sha256", PAYLOAD_VERSION)
    rest = [change for change in file.changes if change.area != "toolchain" and not change.name.startswith(in_file)]
    if {change.name for change in rest} == {"SHA-256"} and any(
        change.name.startswith(in_file) for change in file.changes
    ):
        rest = []
    return replace(file, changes=tuple(rest))


def _verify_on(python: Path, folder: Path, title: str, store: str | None) -> Crossed:
    """Verifies files on the ExecuTorch runtime of another environment; raises InputError if that cannot be said."""
    if not any(folder.rglob("*.pte")):
        return Crossed({}, {})
    sys.stderr.write(f"{folder.name}: its files are run with {title}\n")
    command = [sys.executable, *COMMAND, "verify", str(folder), "--place", f"python:{python}", "--json"]
    command += ["--store", store] if store else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - our own
    try:
        said = json.loads(done.stdout)
        ran = {name: figures["overall"]["sqnr_db"] for name, figures in said["verified"].items()}
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(f"the files in {folder} could not be verified with {python}, for the reason above") from error
    return Crossed(ran, dict(said["failed"]))


_OPTIONS = {"models": "--model", "recipes": "--recipe", "overrides": "--set", "places": "--place"}
"""Options that are not named for their field."""


def arguments_of(request: ExportRequest) -> list[str]:
    """The command line of a request."""
    fields = {name: value for name, value in request.parameters(defaults=False).items() if name != "zoo"}
    arguments = [str(request.zoo)]
    for name, value in fields.items():
        option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
        values = value if isinstance(value, list) else [value]
        arguments += [part for each in values for part in ([option] if each is True else [option, str(each)])]
    return arguments
