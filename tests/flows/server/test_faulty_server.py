"""A Prefect server that fails at any one kind of call: files are made every time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from pteforge.tests.faulty_proxy import Proxy, run_proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

FAULTS = ("unavailable", "reset", "stall")
ANY_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=key/)[^/]+|(?<=/name/)[^/]+")


@dataclass
class OneKind:
    """Treats the requests of one kind badly. A kind is a method and a path without ids."""

    kind: str = ""
    fault: str = ""
    kinds: set[str] = field(default_factory=set)  # all that came
    spoilt: int = 0  # requests that were not forwarded

    def choose(self, method: str, target: str) -> str:
        """What to do with a request, see `Proxy`."""
        kind = f"{method} {ANY_ID.sub('ID', urlsplit(target).path)}"
        self.kinds.add(kind)
        if kind != self.kind:
            return ""
        self.spoilt += 1
        return self.fault


@pytest.fixture
def proxy(server) -> Iterator[tuple[OneKind, str]]:
    """What a proxy does, and the URL of the API behind it."""
    made = OneKind()
    with run_proxy(Proxy(server, made.choose)) as url:
        yield made, f"{url}/api"


# Exports as lines of standard input say, all in one process; prints exit codes and whether Prefect was given up.
EXPORTS = """
import json, sys
from pathlib import Path
from pteforge.flows.run_flow import run_flow
from pteforge.flows.session import open_session
for line in sys.stdin:
    out, overrides = json.loads(line)
    with open_session(Path("zoo.yaml"), out=Path(out), overrides=overrides) as session:
        outcome = run_flow(session)
    print(json.dumps([outcome.exit_code, session.server_lost]), flush=True)
"""


def test_every_kind_of_call(project, proxy):
    """Whatever kind of call is answered with 503, reset or never answered: exit code 0, and all files are there."""
    made, url = proxy
    gate = {"evaluator": "scoring:finite", "floor": 0.5}
    project.write_zoo(
        {"linear": "nets:linear"}, ("scored",), {"scored": {"extends": "portable-fp32", "accuracy": gate}}
    )
    environment = {"PREFECT_API_URL": url, "PREFECT_CLIENT_MAX_RETRIES": "1", "PREFECT_API_REQUEST_TIMEOUT": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", EXPORTS],
        cwd=project.folder,
        env=project.environment(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def export(seed: int) -> bool:
        """Finds stages and runs two that were not run before; returns whether Prefect was given up."""
        out = project.folder / f"out-{seed}"
        process.stdin.write(json.dumps([str(out), [f"recipes.scored.accuracy.floor={seed / 1000}"]]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, process.stderr.read()
        code, lost = json.loads(line)
        assert code == 0
        assert sorted(path.name for path in out.rglob("*.pte")) == ["scored.pte"]
        return lost

    with process:
        assert not export(0)
        kinds = sorted(made.kinds)
        assert {"POST /api/flow_runs/", "POST /api/flow_runs/ID/set_state", "POST /api/logs/"} <= set(kinds)
        lost, met = set(), set()
        for seed, (made.kind, made.fault) in enumerate(((k, f) for k in kinds for f in FAULTS), start=1):
            made.spoilt = 0
            if export(seed):
                lost.add(made.kind)
            if made.spoilt:
                met.add(made.kind)
        process.stdin.close()
        assert "Traceback" not in process.stderr.read()
    assert "POST /api/flow_runs/" in lost
    assert set(kinds) - met <= {"GET /api/admin/version", "GET /api/flows/ID"}  # asked for once per process
