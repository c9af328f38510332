"""What people see of runs in Prefect's UI, in headless Chromium; pictures of docs/how-to come from here."""

from __future__ import annotations

import json
import re

import pytest
from pteforge.flows.run.request import ExportRequest, describe
from pteforge.tests.chromium import open_page
from pteforge.tests.flows.server.conftest import running_worker

pytestmark = pytest.mark.slow


def test_runs_in_the_ui(project, prefect, on_server, server, recorded, pictures, tmp_path):
    """A run on a work pool shows the runs that lower models, logs how models end, and has a progress and a summary.

    In the summary, what failed comes first, then what has changed since the run before.
    """
    project.write_zoo({"classifier": "nets:linear", "filter": "nets:conv", "detector": "faulty:raises"})
    project.edit("zoo.yaml", "version: 1", "version: 1\nname: nightly\nrun: {pool: ui}")
    out = ("--out", str(project.out))
    assert project.export("--model", "classifier", *out, env=on_server).code == 0
    prefect("work-pool", "create", "ui", "--type", "process")
    deployed = project.run("deploy", "zoo.yaml", "--name", "ui", "--pool", "ui", "--on", "pool", env=on_server)
    assert deployed.code == 0, deployed.err
    with running_worker(project, on_server, "ui"):
        done = project.export("--on", "pool", "--set", "models.classifier.source.kwargs.width=64", *out, env=on_server)
    assert done.code == 1, done.err
    known = recorded(project)
    logged = [line for line in known.logged() if re.match("[1-3]/3 ", line)]
    assert {re.split("[ /]", line)[2] for line in logged} == {"classifier", "filter", "detector"}
    assert any("detector" in line and "xnnpack-fp32 failed at export: " in line for line in logged)
    runs = server.replace("/api", "/v2/runs/flow-run")
    with open_page(tmp_path) as page:
        page.open(f"{runs}/{known.flow_run().id}", "export zoo.yaml", "zoo:nightly", "Failed")
        shared = r"export zoo\.yaml \w+(,\w+)+"  # by the time that each is expected to take
        shown = page.click("Subflow Runs", shared, "model:filter", "Failed")
        assert not re.search(r"(?<!part-)of:", shown)  # which is of runs of a deployment
        page.click("Task Runs", "model classifier", "model filter", "model detector")
        page.click("Logs", "^[123]/3 classifier ", "^[123]/3 filter ", "^[123]/3 detector ")
        page.picture(pictures / "prefect-run.png")
        page.click("Artifacts", "progress-nightly", "stages done")
        summary = ("4 files verified, 2 failed", "model\tportable-fp32\txnnpack-fp32", r"Page: out/index\.html on ")
        shown = page.click("zoo-nightly", *summary)
        assert shown.index("detector export: ") < shown.index("model\tportable-fp32")
        rows = re.findall(r"^(detector|classifier|filter)\t(.*)\t(.*)$", shown, re.MULTILINE)
        assert [row[0] for row in rows] == ["detector", "classifier", "filter"]
        for cells, pattern in zip(
            rows,
            ("failed at export", r"verified, .* \(size \+[\d.]+ %, SQNR .*\)", r"verified, .* \(new\)"),
            strict=True,
        ):
            assert all(re.fullmatch(pattern, cell) for cell in cells[1:]), cells
        page.picture(pictures / "prefect-summary.png")
        page.open(page.link("detector"), "Failed")
        page.wait_for_patterns(shared)

        assert project.export("--model", "filter", *out, env=on_server).code == 0
        page.open(f"{runs}/{recorded(project).flow_run().id}", "export zoo.yaml filter", "Cached", "1 Task run")


def test_the_form_of_a_deployment(project, prefect, on_server, server, pictures, tmp_path):
    """The form of a custom run describes each field, offers the zoo's models and recipes, and has no null to choose."""
    project.write_zoo({"classifier": "nets:linear", "filter": "nets:conv"})
    prefect("work-pool", "create", "form", "--type", "process")
    done = project.run("deploy", "zoo.yaml", "--pool", "form", "--name", "form", env=on_server)
    assert done.code == 0, done.err
    known = json.loads(prefect("deployment", "inspect", "export-zoo/form", "--output", "json"))
    with open_page(tmp_path) as page:
        form = f"{server.replace('/api', '/v2/deployments/deployment')}/{known['id']}/run"
        titles = ("Stages at once (Optional)", "Where stages run (Optional)", "Choose\nPattern")
        shown = page.open(form, *titles, *(describe(name) for name in ExportRequest.model_fields))
        assert "None" not in shown
        page.picture(pictures / "prefect-form.png")
        page.click("Select", "local\npool\ndask\nray")  # the last one
