"""Releases by the zoo's flow, as a deployment runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import UUID

import pteforge
import pytest
from pteforge.errors import InputError
from pteforge.flows.prefect.deployments import ZooDeployment
from pteforge.flows.releases.releases import Releases
from pteforge.flows.run.request import ExportRequest
from pteforge.tests.flows.server.conftest import receiver, run_python

pytestmark = pytest.mark.slow

DOCUMENTATION = Path(pteforge.__file__).parent / "docs" / "how-to" / "operations.md"
WIDER = "models.net.source.kwargs.width=64"

# Two runs of the flow, which may retry: how each ended, and how often it was tried.
RUNS = """
import asyncio, json, sys
from pteforge.flows.prefect import zoo_flow
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


# Makes a block that posts notifications to a URL, and prints its id.
WEBHOOK = """
import json, sys
from prefect.blocks.notifications import CustomWebhookNotificationBlock
text, url = {"text": "{{subject}} | {{body}}"}, json.loads(sys.argv[1])
print(json.dumps(str(CustomWebhookNotificationBlock(name="hook", url=url, json_data=text).save("hook"))))
"""


@pytest.fixture
def notifications(project, prefect, on_server):
    """What the automation of docs/how-to/operations.md sends, in order."""
    with receiver() as (url, sent):
        (block,) = run_python(project.folder, WEBHOOK, url, on_server)
        example = re.search(r"```yaml\n(automations:.+?)```", DOCUMENTATION.read_text(), re.DOTALL)[1]
        project.write("automation.yaml", re.sub(r"(block_document_id: )\S+", rf"\g<1>{block}", example))
        prefect("automation", "create", "--from-file", "automation.yaml")
        yield sent


def test_the_flow_publishes(project, on_server, recorded, notifications):
    """A flow run that releases its files says so. One whose release is held back fails, and is not tried again."""
    same = {"zoo": str(project.folder / "zoo.yaml"), "store": str(project.store), "out": str(project.out)}
    given = [same, {**same, "overrides": [WIDER]}]
    first, second = run_python(project.folder, RUNS, given, on_server)
    releases = Releases(str(project.folder / "shared"))
    latest, held = releases.names()
    assert first[:2] == ["Cached", 1]
    assert first[2].endswith(f" cached; {latest} at {releases.url} is 'latest'")
    assert second[:2] == ["Failed", 1]
    assert (
        f"{held} at {releases.url} is not 'latest', which stays at {latest}: net/portable-fp32: the file" in second[2]
    )
    assert releases.find("latest") == latest
    announced = {name: payload["release"] for name, payload in recorded(project).events(2).items()}
    assert announced == {"pteforge.published": latest, "pteforge.regression": held}
    notified = notifications.get(timeout=60)["text"]
    assert re.match(r"A release is held back \| zoo: net/portable-fp32: the file grew by", notified)
    assert f"to accept this: pteforge release promote {releases.url} {held} --channel latest" in notified
    assert notifications.empty()

    asked = ExportRequest(zoo=project.folder / "zoo.yaml")
    deployment = ZooDeployment(asked.model_copy(update={"publish": "elsewhere"}), "nightly")
    assert deployment.settings()["parameters"]["publish"].endswith("/elsewhere")
    project.edit("zoo.yaml", "growth=2%", "most")
    with pytest.raises(InputError, match=r"zoo\.yaml:\d+:\d+: publish: 'most' .*limit"):
        ZooDeployment(asked, "nightly").settings()


def test_deployed_nights(project, prefect, on_server, recorded):
    """What becomes of the release of a deployed run is in its state, its artifact, `pteforge runs` and the page."""
    prefect("work-pool", "create", "nights", "--type", "process")
    project.edit("zoo.yaml", ", gates: growth=2%", "")
    done = project.run("deploy", "zoo.yaml", "--pool", "nights", "--name", "nights", "--out", "out", env=on_server)
    assert done.code == 0, done.err

    def night(*overrides):
        """A run of the deployment: its state, its artifact, its entry in `pteforge runs`, and the page."""
        before = len(project.run("runs", "--json").json["runs"])
        given = json.dumps(list(overrides))
        prefect("deployment", "run", "export-zoo/nights", "--param", f"overrides={given}")
        prefect("worker", "start", "--pool", "nights", "--run-once")
        runs = project.run("runs", "--json").json["runs"]
        assert len(runs) == before + 1
        page = (project.out / "index.html").read_text()
        return recorded(project).flow_run().state, recorded(project).artifact("zoo-zoo"), runs[0], page

    releases = Releases(str(project.folder / "shared"))
    for overrides in ((), (WIDER,)):
        state, artifact, run, page = night(*overrides)
        assert state.is_completed()
        assert (run["status"], run["release"]["release"]) == ("completed", releases.find("latest"))
        assert releases.find("latest") in artifact.replace("\\", "")
        assert releases.find("latest") in page
        assert f"/runs/flow-run/{UUID(run['id'])}" in page
    good, bad = releases.names()
    releases.roll_back("latest")
    for _ in range(2):
        state, artifact, run, page = night(WIDER)
        assert state.is_completed()
        assert "these files are withdrawn: the channel was rolled back from them" in state.message
        assert releases.find("latest") == good
        for text in (" ".join(run["release"]["reasons"]), artifact, page):
            assert "rolled back from" in text
        assert run["release"]["release"] == bad
    told = recorded(project).event("pteforge.withdrawn")
    assert (told["release"], told["acceptance"] in told["reasons"][0]) == (bad, True)
    assert "held back" not in page

    state, artifact, run, page = night(WIDER.replace("64", "99"), "publish.gates=growth=2%")
    assert state.is_failed()
    assert run["status"] == "held back"
    for text in (state.message, " ".join(run["release"]["reasons"]), artifact, page):
        assert "the file grew by" in text
        assert "2 %" in text
    assert "Held back" in artifact
    assert "held back" in page
