"""A Prefect server that fails at 1 to 90 % of calls, or whose disk is full: all files are made, whatever it misses."""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pteforge.tests.faults.campaign import Campaign, trying
from pteforge.tests.faults.zoo import make_project
from pteforge.tests.faulty_proxy import HTTP_FAULTS, Proxy, run_proxy
from pteforge.tests.flows.conftest import Project
from pteforge.tests.flows.server.conftest import running_server

_ANY_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=key/)[^/]+|(?<=/name/)[^/]+")
_IMPATIENT = {"PREFECT_CLIENT_MAX_RETRIES": "1", "PREFECT_API_REQUEST_TIMEOUT": "1"}
_RATES = (0.01, 0.9)
_ON_DISK = 0.1  # share of the trials with a full disk: they take a command of their own
_SPACE = (100_000, 2_000_000)  # bytes that are left for any one file of Prefect's home
_LIMIT = 600  # seconds for one command, on a busy machine
FILES = ["linear/scored.pte"]


@dataclass
class Spoiler:
    """Says which requests a proxy treats badly.

    Attributes:
        fault: one of `HTTP_FAULTS`; empty for none.
        kind: of the requests that are affected, a method and a path without ids; empty for all.
        rate: share of those that are.
        kinds: of all requests that came.
        spoilt: how many were not answered as they should have been.
    """

    fault: str = ""
    kind: str = ""
    rate: float = 1.0
    rng: random.Random = field(default_factory=random.Random)
    kinds: set[str] = field(default_factory=set)
    spoilt: int = 0

    def choose(self, method: str, target: str) -> str:
        """What to do with a request, see `Proxy`."""
        kind = f"{method} {_ANY_ID.sub('ID', urlsplit(target).path)}"
        self.kinds.add(kind)
        if not self.fault or self.kind not in ("", kind) or self.rng.random() >= self.rate:
            return ""
        self.spoilt += 1
        return self.fault


# Exports as lines of standard input say, all in one process; prints exit codes and whether Prefect was given up.
_EXPORTS = """
import json, sys
from pteforge.flows.run.request import ExportRequest
from pteforge.flows.prefect.run_flow import run_flow
from pteforge.flows.run.session import open_session
for line in sys.stdin:
    out, overrides = json.loads(line)
    with open_session(ExportRequest(zoo="zoo.yaml", out=out, overrides=overrides)) as session:
        outcome = run_flow(session)
    print(json.dumps([outcome.exit_code, session.prefect.lost]), flush=True)
"""


def make_scored_project(folder: Path) -> Project:
    """One model, whose file is scored."""
    project = make_project(folder)
    gate = {"evaluator": "scoring:finite", "floor": 0.5}
    project.write_zoo(
        {"linear": "nets:linear"}, ("scored",), {"scored": {"extends": "portable-fp32", "accuracy": gate}}
    )
    return project


class Exporter:
    """A process that exports a zoo again and again, on one Prefect server."""

    def __init__(self, project: Project, server: str) -> None:
        """Starts it for a project of `make_scored_project`."""
        self._project, self._count, self._log = project, 0, project.folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _EXPORTS],
                cwd=project.folder,
                env=project.environment({"PREFECT_API_URL": server, **_IMPATIENT}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def export(self) -> bool:
        """Finds stages and runs two that were not run before, checks the files, and returns whether Prefect failed."""
        assert self._process.stdin
        assert self._process.stdout
        self._count += 1
        out = self._project.folder / f"out-{self._count}"
        asked = [str(out), [f"recipes.scored.accuracy.floor={self._count / 1_000_000}"]]
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self.said
        code, lost = json.loads(line)
        assert code == 0, self.said
        assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*.pte")) == FILES
        shutil.rmtree(out)
        return bool(lost)

    @property
    def said(self) -> str:
        """What it wrote to standard error."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """Ends it without waiting for what Prefect has still to send."""
        self._process.kill()
        self._process.communicate()


@dataclass
class Ready:
    """What all trials start from: a zoo that was lowered, a Prefect home with a database, a server and its proxy."""

    exporter: Exporter
    spoiler: Spoiler
    project: Project
    home: Path
    stack: contextlib.ExitStack

    def close(self) -> None:
        self.stack.close()


def prepare(folder: Path) -> Ready:
    """Starts a server, exports the zoo there, and with an embedded server in a home of its own."""
    with contextlib.ExitStack() as stack:
        url, _ = stack.enter_context(running_server(folder / "server"))
        spoiler = Spoiler()
        proxy = stack.enter_context(run_proxy(Proxy(url.removesuffix("/api"), spoiler.choose)))
        project = make_scored_project(folder / "project")
        exporter = Exporter(project, f"{proxy}/api")
        stack.callback(exporter.close)
        exporter.export()
        first = project.export(env={"PREFECT_HOME": str(folder / "home")})
        assert first.code == 0, first.err
        return Ready(exporter, spoiler, project, folder / "home", stack.pop_all())


def trial(ready: Ready, rng: random.Random, folder: Path) -> str:
    """Exports while calls fail or there is no space; all files have to be there."""
    if rng.random() < _ON_DISK:
        return _on_a_full_disk(ready, rng, folder)
    spoiler, fault = ready.spoiler, rng.choice(HTTP_FAULTS)
    rate = math.exp(rng.uniform(*map(math.log, _RATES)))
    with trying(fault):
        spoiler.fault, spoiler.rate, spoiler.rng = fault, rate, rng
        try:
            ready.exporter.export()
        finally:
            spoiler.fault = ""
        assert "Traceback" not in ready.exporter.said, ready.exporter.said
    return f"calls: {fault}"


def _on_a_full_disk(ready: Ready, rng: random.Random, folder: Path) -> str:
    """Lets the files of the command be no longer than those of Prefect's home are, and somewhat more."""
    kind, space = rng.choice(("new home", "home with a database")), rng.randint(*_SPACE)
    with trying(kind):
        project, home = ready.project.copy(folder / "project"), folder / "home"
        if kind == "new home":
            home.mkdir()
            space //= 4  # the database takes a megabyte
        else:
            shutil.copytree(ready.home, home)
            space += max(path.stat().st_size for path in home.glob("prefect.db*"))
        done = export_with_limit(project, home, space)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        assert sorted(path.relative_to(project.out).as_posix() for path in project.out.rglob("*.pte")) == FILES
    return f"disk is full, {kind}"


def export_with_limit(project: Project, home: Path, size: int) -> subprocess.CompletedProcess[str]:
    """Exports all stages again, with an embedded server whose files, as all of the command's, have at most a size."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    shutil.rmtree(project.out, ignore_errors=True)
    return subprocess.run(
        [Path(sys.executable).with_name("pteforge"), "export", "zoo.yaml", "--refresh"],
        cwd=project.folder,
        env=project.environment({"PREFECT_HOME": str(home)}),
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )


PREFECT = Campaign("Prefect", prepare, trial, 200)
