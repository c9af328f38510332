"""Releases by the zoo's flow, as a deployment runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pteforge.errors import InputError
from pteforge.flows.deployments import ZooDeployment
from pteforge.flows.releases import Releases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WIDER = "models.net.source.kwargs.width=64"

# Two runs of the flow, which may retry: how each ended, and how often it was tried.
RUNS = """
import asyncio, json, sys
from pteforge.flows import zoo_flow
attempts, find = [], zoo_flow.find_models
zoo_flow.find_models = lambda session: attempts.append(find(session))
flow = zoo_flow.export_zoo.with_options(retries=1, retry_delay_seconds=0)
for parameters in json.loads(sys.argv[1]):
    attempts.clear()
    state = asyncio.run(flow(**parameters, return_state=True))
    print(json.dumps([state.name, len(attempts), state.message]))
"""


@pytest.fixture
def project(lower_project, lower):
    """A zoo with gates, of which both widths are cached."""
    model = {"source": {"builder": "nets:linear", "kwargs": {"width": 8}}}
    project, _ = lower_project({"net": model}, ("portable-fp32",))
    assert lower(project, WIDER).outcome.exit_code == 0
    zoo = (project.folder / "zoo.yaml").read_text()
    project.write("zoo.yaml", f"{zoo}publish: {{url: shared, gates: growth=2%}}\n")
    return project


def test_the_flow_publishes(project, on_server, recorded):
    """A flow run that releases its files says so. One whose release is held back fails, and is not tried again.

    Both emit events, for automations.
    """
    same = {"zoo": str(project.folder / "zoo.yaml"), "store": str(project.store), "out": str(project.out)}
    done = subprocess.run(
        [sys.executable, "-c", RUNS, json.dumps([same, {**same, "overrides": [WIDER]}])],
        cwd=project.folder,
        env=project.environment(on_server),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines()[-2:])
    releases = Releases(str(project.folder / "shared"))
    latest, held = releases.names()
    assert first[:2] == ["Cached", 1]
    assert first[2].endswith(f" cached; {latest} at {releases.url} is 'latest'")
    assert second[:2] == ["Failed", 1]
    assert (
        f"{held} at {releases.url} is not 'latest', which stays where it is: net/portable-fp32: the file" in second[2]
    )
    assert releases.find("latest") == latest
    announced = {name: payload["release"] for name, payload in recorded(project).events(2).items()}
    assert announced == {"pteforge.published": latest, "pteforge.regression": held}

    deployment = ZooDeployment(project.folder / "zoo.yaml", "nightly", publish="elsewhere")
    assert deployment.settings()["parameters"]["publish"].endswith("/elsewhere")
    project.edit("zoo.yaml", "growth=2%", "most")
    with pytest.raises(InputError, match=r"zoo\.yaml:\d+:\d+: publish: 'most' is not a limit"):
        ZooDeployment(project.folder / "zoo.yaml", "nightly").settings()
