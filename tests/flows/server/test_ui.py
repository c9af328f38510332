"""What people see of runs in Prefect's UI, in headless Chromium; pictures of docs/how-to come from here."""

from __future__ import annotations

import json
import re

import pytest
from pteforge.flows.run.request import ExportRequest, describe
from pteforge.tests.chromium import open_page

pytestmark = pytest.mark.slow


def test_runs_in_the_ui(project, on_server, server, recorded, pictures, tmp_path):
    """The page of a run shows its name, tag, state, models and stages, and leads to the summary and the progress."""
    project.write_zoo({"classifier": "nets:linear", "filter": "nets:conv"})
    project.edit("zoo.yaml", "version: 1", "version: 1\nname: nightly")
    out = ("--out", str(project.out))
    for chosen in (("--model", "classifier"), ()):
        assert project.export(*chosen, *out, env=on_server).code == 0
    known = recorded(project)
    assert len(known.task_runs(15)) == 15  # the server records them with a delay
    runs = server.replace("/api", "/v2/runs/flow-run")
    with open_page(tmp_path) as page:
        page.open(f"{runs}/{known.flow_run().id}", "export zoo.yaml", "zoo:nightly", "Completed", "15 Task runs")
        page.click("Task Runs")
        shown = page.wait_for("model classifier", "model filter", "filter verify/xnnpack-fp32", "stage:verify")
        assert re.search(r"model classifier\s.*?\bCached\b", shown, re.DOTALL)
        page.picture(pictures / "prefect-run.png")
        page.click("Artifacts")
        page.wait_for("progress-nightly", "26 stages done")
        page.click("zoo-nightly")
        page.wait_for("4 files verified; 13 stages run, 13 cached.", "model\tportable-fp32\txnnpack-fp32")
        figures = r", [\d.]+ KiB, (exact|[\d.]+ dB)"
        statuses = {"classifier": "cached", "filter": "made"}
        page.wait_for_patterns(*(rf"^{model}(\t{status}{figures}){{2}}$" for model, status in statuses.items()))
        page.picture(pictures / "prefect-summary.png")

        assert project.export(*out, env=on_server).code == 0
        page.open(f"{runs}/{recorded(project).flow_run().id}", "export zoo.yaml", "Cached", "2 Task runs")


def test_the_form_of_a_deployment(project, prefect, on_server, server, tmp_path):
    """The form of a custom run describes each field."""
    project.write_zoo({"classifier": "nets:linear"}, ("portable-fp32",))
    prefect("work-pool", "create", "form", "--type", "process")
    done = project.run("deploy", "zoo.yaml", "--pool", "form", "--name", "form", env=on_server)
    assert done.code == 0, done.err
    known = json.loads(prefect("deployment", "inspect", "export-zoo/form", "--output", "json"))
    with open_page(tmp_path) as page:
        form = f"{server.replace('/api', '/deployments/deployment')}/{known['id']}/run"
        page.open(form, *(describe(name) for name in ExportRequest.model_fields))
