"""What a run reports to other programs: lines of JSON, spans of OpenTelemetry, and metrics of Prometheus."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pteforge.artifacts.store import open_store
from pteforge.errors import printable
from pteforge.flows.run.outcome import ModelOutcome
from pteforge.flows.run.telemetry import METRICS, tracer_provider
from pteforge.tasks.results.delivered import Delivered
from pteforge.tests.conftest import run_process
from pteforge.tests.flows.conftest import Collector, Project, open_run
from pteforge.tests.flows.test_hostile_text import HOSTILE

LOCALLY = """
import asyncio, sys
from pathlib import Path
from pteforge.flows.run.json_log import log_json
from pteforge.flows.run.request import ExportRequest
from pteforge.flows.run.session import open_session
from pteforge.flows.run.zoo import find_models, lower_rest

if __name__ == "__main__":
    log_json()
    with open_session(ExportRequest(zoo="zoo.yaml", store="store")) as session:
        with session.recording.open(Path("run.prom")):
            find_models(session)
            asyncio.run(lower_rest(session, session.local_runner()))
    assert "prefect" not in sys.modules
"""
"""A run without Prefect."""


def events(log: str) -> Iterator[dict[str, Any]]:
    """The events of a log, each line of which must be one in ASCII, with the fields that all have."""
    for line in log.splitlines():
        assert line.isascii()
        assert line.isprintable()
        event = json.loads(line)
        assert event["time"].endswith("Z")
        assert abs((datetime.now(UTC) - datetime.fromisoformat(event["time"])).total_seconds()) < 600
        assert event["level"] in ("info", "warning", "error")
        assert event["message"]
        yield event


def samples(file: Path) -> dict[tuple[str, ...], float]:
    """The samples of a file, as Prometheus parses it, by name and values of their labels in the order of `METRICS`."""
    families = text_string_to_metric_families(file.read_text(encoding="utf-8"))
    found = [sample for family in families for sample in family.samples]
    return {(each.name, *(each.labels[label] for label in METRICS[each.name][1])): each.value for each in found}


@pytest.mark.slow
def test_a_run_that_fails_in_part(project: Project, collector: Collector):
    """A run without Prefect reports each stage, recipe and model once, in all three forms, with equal facts.

    Spans of stages lie within those of their recipe, or of their model where several recipes share them.
    """
    project.write_zoo({"linear": "nets:linear", "raises": "faulty:raises"})
    done = run_process(sys.executable, "-c", LOCALLY, cwd=project.folder, env=project.environment(collector.variables))
    assert done.returncode == 0, done.stderr
    said = list(events(done.stderr))
    assert [said[0]["event"], said[-1]["event"]] == ["run_started", "run_finished"]
    assert {event["run"] for event in said} == {said[0]["run"]}
    ended = [event for event in said if event["event"] == "stage_finished"]
    stages = {event["step"]: event for event in ended if event["model"] == "linear"}
    assert "recipe" not in stages["export"]
    assert stages["edge/forward/xnnpack-fp32"]["recipe"] == "xnnpack-fp32"
    assert all(
        event["status"] == "ran" and not event["cached"] and len(event["key"]) == 64 for event in stages.values()
    )
    assert stages["export"]["peak_memory"] > 0 < stages["export"]["seconds"]
    (failed,) = (event for event in ended if event["model"] == "raises")
    assert (failed["level"], failed["status"], failed["stage"]) == ("error", "failed", "export")
    assert "no such width" in failed["problem"]
    recipes = [event for event in said if event["event"] == "recipe_finished"]
    assert {(each["model"], each["recipe"], each["status"]) for each in recipes} == {
        *(("linear", recipe, "made") for recipe in ("portable-fp32", "xnnpack-fp32")),
        *(("raises", recipe, "failed") for recipe in ("portable-fp32", "xnnpack-fp32")),
    }
    assert [each["failed_step"] for each in recipes if "ZeroDivisionError" in each.get("log", "")] == ["export"] * 2
    assert (said[-1]["status"], said[-1]["stages_ran"]) == ("failed", len(stages))

    spans = collector.spans()
    assert len({span["trace"] for span in spans}) == 1
    assert {span["service"] for span in spans} == {"pteforge"}
    by_id = {span["id"]: span for span in spans}
    assert sorted(span["pteforge.step"] for span in spans if span["name"].startswith("stage ")) == sorted(
        event["step"] for event in ended
    )
    for event in ended:
        (span,) = (
            each
            for each in spans
            if each.get("pteforge.step") == event["step"] and each["pteforge.model"] == event["model"]
        )
        kept = {f"pteforge.{name}": value for name, value in event.items() if name in ("key", "cached", "status")}
        assert kept.items() <= span.items()
        above = ["recipe " + event["recipe"]] if "recipe" in event else []
        above += ["model " + event["model"], "run zoo"]
        child = span
        for name in above:
            parent = by_id[child["parent"]]
            assert parent["name"] == name
            assert parent["start"] <= child["start"] <= child["end"] <= parent["end"]
            child = parent
        assert child["parent"] == ""
        assert (span["status"] == "error") == (event["status"] == "failed")

    counted = samples(project.folder / "run.prom")
    assert {name for name, *_ in counted} == {*METRICS}
    assert counted["pteforge_runs_total", "zoo", "failed"] == 1
    assert counted["pteforge_models_total", "zoo", "failed"] == counted["pteforge_models_total", "zoo", "made"] == 1
    assert counted["pteforge_stages_total", "zoo", "export", "failed"] == 1
    assert counted["pteforge_stages_total", "zoo", "edge", "ran"] == 2
    seconds = sum(value for (name, *_), value in counted.items() if name == "pteforge_stage_seconds_total")
    assert seconds == pytest.approx(sum(event["seconds"] for event in ended))
    assert ("pteforge_last_success_timestamp_seconds", "zoo", "raises") not in counted
    with open_store(str(project.store)) as store:
        assert counted["pteforge_store_size_bytes", "zoo"] == sum(stored.size for stored in store.objects())


def test_a_run_with_nothing_to_do(warm: Project, collector: Collector):
    """A cached stage has a span without duration that says so. Counters go on from what the file has."""
    env = {**collector.variables, "PTEFORGE_METRICS": str(warm.folder), "PTEFORGE_LOG_FORMAT": "json"}
    first = warm.export(env=env)
    assert (first.code, first.out) == (0, ""), first.err
    stages = [event for event in events(first.err) if event["event"] == "stage_finished"]
    assert all(event["cached"] for event in stages)
    assert sum(event["seconds"] for event in stages) > 0.0  # of when they ran; `report` may take less than one shows
    spans = [span for span in collector.spans() if span["name"].startswith("stage ")]
    assert len(spans) == len(stages) == len({(event["model"], event["step"]) for event in stages}) > 20
    assert all(span["pteforge.cached"] and span["end"] == span["start"] for span in spans)
    file = warm.folder / "pteforge_zoo.prom"
    before = samples(file)
    assert before["pteforge_models_total", "zoo", "cached"] == 2
    assert ("pteforge_stage_seconds_total", "zoo", "edge") not in before
    assert warm.export("--model", "conv", env={"PTEFORGE_METRICS": str(warm.folder)}).code == 0
    after = samples(file)
    assert after["pteforge_runs_total", "zoo", "completed"] == 2
    assert after["pteforge_models_total", "zoo", "cached"] == 3
    success = "pteforge_last_success_timestamp_seconds", "zoo"
    assert (after[*success, "conv"], after[*success, "linear"]) == (
        pytest.approx(before[*success, "conv"], abs=600),
    ) * 2
    assert after[*success, "conv"] > after[*success, "linear"] == before[*success, "linear"]


def test_nothing_is_loaded_unless_it_is_asked_for(warm: Project):
    """Without the variables and options, a rerun imports neither OpenTelemetry nor prometheus_client."""
    program = "import sys; from pteforge.tests.command import run_command; run_command(); print(*sys.modules)"
    arguments = ("export", "zoo.yaml", "--json")
    done = run_process(sys.executable, "-c", program, *arguments, cwd=warm.folder, env=warm.environment())
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert "pteforge" in loaded
    assert {"opentelemetry", "prometheus_client"}.isdisjoint(loaded)


def test_what_keeps_a_run_from_reporting(warm: Project):
    """A collector that is away, and a file that cannot be written, are warnings: the run ends as it would have."""
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    (warm.folder / "full.prom").mkdir()
    (warm.folder / "full.prom" / "pteforge_zoo.prom").mkdir()
    done = warm.export("--log-format", "json", "--metrics", "full.prom", env=away)
    assert done.code == 0
    said = list(events(done.err))
    warnings = [event["message"] for event in said if event["event"] == "log"]
    assert any("the metrics in" in text for text in warnings)
    assert any("span" in text for text in warnings)
    warm.run("export", "zoo.yaml", "--metrics", "zoo.yaml").refused("--metrics zoo.yaml")
    other = warm.write("node.prom", "# TYPE node_load1 gauge\nnode_load1 0.5\n")
    assert "another program" in warm.export("--metrics", "node.prom").err
    assert "node_load1 0.5" in other.read_text()


def test_a_collector_that_stalls(warm: Project):
    """One that takes a connection and does not answer is given up after seconds, which the run says."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        stalls = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        done = warm.export("--log-format", "json", env={**stalls, "OTEL_EXPORTER_OTLP_TIMEOUT": "150"})
        ended = datetime.now(UTC)
    assert done.code == 0
    *_, finished, warning = events(done.err)
    assert finished["event"] == "run_finished"
    assert "has not taken all spans within 5 s: some are lost" in warning["message"]
    assert (ended - datetime.fromisoformat(finished["time"])).total_seconds() < 60


def test_spans_without_the_extra(monkeypatch, caplog):
    """Variables that ask for spans, without the package that sends them, are a warning that says what to install."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert tracer_provider.__wrapped__() is None
    assert 'pip install "pteforge[otel]"' in caplog.text
    caplog.clear()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert tracer_provider.__wrapped__() is None
    assert caplog.text == ""


def test_errors_are_lines_of_the_log(project: Project):
    """What ends a command before the run begins is an event, too, whatever it quotes."""
    done = project.run("export", f"{HOSTILE}.yaml", "--log-format", "json")
    assert (done.code, done.out) == (2, "")
    (event,) = events(done.err)
    assert (event["event"], event["level"]) == ("error", "error")


def test_metrics_of_hostile_names(project: Project, workers: Any, tmp_path: Path):
    """Names cannot break the format or leave the folder. What is known of models that the zoo lost is dropped."""
    counted, zoo = [], project.folder / "zoo.yaml"
    for models in (["linear", "lost"], ["linear"]):
        project.write_zoo(dict.fromkeys(models, "nets:linear"))
        zoo.write_text(zoo.read_text() + f"name: {json.dumps('../' + HOSTILE + chr(34))}\n")
        with open_run(project, workers) as session, session.recording.open(tmp_path):
            session.progress.add(ModelOutcome(models[-1], (Delivered(models[-1], "portable-fp32", "cached"),)))
        (file,) = tmp_path.glob("*.prom")
        assert file.stem.isascii()
        counted.append(samples(file))
    first, second = counted
    (zoo,) = {zoo for _, zoo, *_ in first}
    assert zoo == printable(f'../{HOSTILE}"')
    assert sum(value for (name, *_), value in second.items() if name == "pteforge_runs_total") == 2
    success = "pteforge_last_success_timestamp_seconds"
    assert [key for key in first if key[0] == success] == [(success, zoo, "lost")]
    assert [key for key in second if key[0] == success] == [(success, zoo, "linear")]
