"""Runs of a zoo in other environments: its `toolchains`, each with a Python that has torch, ExecuTorch and pteforge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...artifacts.store import Store
from ...configs.base import did_you_mean
from ...errors import InputError, first_line
from ...tasks.lowering.toolchain import Toolchain, toolchain_of
from ..releases.difference import FileDifference, compare, find_side
from ..reports.comparison import Limit
from .interrupt import INTERRUPTED
from .request import ExportRequest
from .session import load

_COMMAND = ("-c", "from pteforge.flows.cli import main; main()")


def python_of(request: ExportRequest, name: str) -> Path:
    """The Python of a toolchain of the request's zoo, or the one whose path is given instead of a name.

    Raises InputError if there is no such toolchain, or no program at that path.
    """
    known = load(request).zoo.toolchains
    if name not in known and os.sep not in name:
        raise InputError(
            f"the zoo has no toolchain {name!r}{did_you_mean(name, tuple(known))}; write "
            f"`toolchains: {{{name}: {{python: PATH}}}}` in it, or give the path of a Python"
        )
    python = known[name].python if name in known else Path(name).expanduser().absolute()
    if not os.access(python, os.X_OK) or python.is_dir():
        raise InputError(f"{python} cannot be run: it should be the Python of an environment with pteforge")
    return python


@dataclass(frozen=True, slots=True)
class Crossed:
    """What came of files of one toolchain on the runtime of the other one.

    Attributes:
        ran: the lowest signal-to-noise ratio to eager of each file that runs there, in dB; None where all is equal.
        failed: why the others do not, or are wrong.
    """

    ran: dict[str, float | None]
    failed: dict[str, str]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A zoo, exported with two toolchains: this process's, and the next one.

    Attributes:
        files: what differs in each file, besides the toolchains.
        crossed: what came of the files of each toolchain on the runtime of the other, by ``now`` and ``next``.
    """

    now: Toolchain
    next: Toolchain
    files: Sequence[FileDifference]
    crossed: dict[str, Crossed]

    @classmethod
    def of(
        cls, request: ExportRequest, python: Path, out: Path, open_store: Callable[[], Store], limits: Sequence[Limit]
    ) -> Rehearsal:
        """Exports, into the folders ``now`` and ``next`` of `out`; what that prints goes to standard error.

        `open_store` is called once the store exists. Raises InputError if one of the two exported nothing,
        KeyboardInterrupt if it was interrupted.
        """
        pythons = {"now": Path(sys.executable), "next": python}
        toolchains = {side: toolchain_of(each) for side, each in pythons.items()}
        runs = []
        for side, each in pythons.items():
            sys.stderr.write(f"{side}: {toolchains[side].title}\n")
            runs.append(_export(each, request, f"{request.zoo.stem} {side}", out / side, open_store))
        before, after = (find_side(run, open_store) for run in runs)
        files = [
            replace(file, changes=tuple(change for change in file.changes if change.area != "toolchain"))
            for file in compare(before, after, limits)
        ]
        crossed = {
            made: _verify_on(pythons[other], out / made, request.store)
            for made, other in (("now", "next"), ("next", "now"))
        }
        return cls(toolchains["now"], toolchains["next"], files, crossed)

    @property
    def problems(self) -> list[str]:
        """A sentence for each file that is not made any more, or is worse than a limit."""
        gone = [f"{file.name}: {'; '.join(file.notes)}" for file in self.files if file.status == "removed"]
        return [sentence for file in self.files for sentence in file.regressions] + gone

    def told(self) -> Iterator[str]:
        """Lines about what is not in the differences of files."""
        yield from self.next.changes_since(self.now)
        for made, on, crossed in ((self.now, self.next, "now"), (self.next, self.now, "next")):
            versions = [each.versions["executorch"] for each in (made, on)]
            done = self.crossed[crossed]
            yield f"{len(done.ran)} files of ExecuTorch {versions[0]} run on the runtime of {versions[1]}"
            yield from (f"{name} does not: {first_line(problem)}" for name, problem in done.failed.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "toolchains": {"now": asdict(self.now), "next": asdict(self.next)},
            "on_the_other_runtime": {made: asdict(crossed) for made, crossed in self.crossed.items()},
        }


def _export(python: Path, request: ExportRequest, zoo: str, out: Path, open_store: Callable[[], Store]) -> str:
    """Exports a zoo under another name with the pteforge of a Python; returns the id of the run."""

    def last_run() -> str:
        with suppress(InputError):  # there is no store yet
            return next((run.id for run in open_store().runs.of_zoo(zoo)), "")
        return ""

    before = last_run()
    named = request.model_copy(update={"out": out, "overrides": (*request.overrides, f"name={zoo}")})
    command = [str(python), *_COMMAND, "export", *arguments_of(named)]
    code = subprocess.run(command, stdout=sys.stderr, check=False).returncode  # noqa: S603 - the user's own Python
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if (run := last_run()) == before:
        raise InputError(f"nothing was exported with {python}, for the reason above")
    return run


def _verify_on(python: Path, folder: Path, store: str | None) -> Crossed:
    """Verifies files on the ExecuTorch runtime of another environment; raises InputError if that cannot be said."""
    command = [sys.executable, *_COMMAND, "verify", str(folder), "--place", f"python:{python}", "--json"]
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
