"""The examples for those who watch runs: their queries are of metrics, labels and attributes that runs report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pteforge
import yaml
from pteforge.artifacts.runs import StageOutcome
from pteforge.flows.run.telemetry import METRICS

FOLDER = Path(pteforge.__file__).parent / "examples" / "observability"


def queries() -> Iterator[str]:
    """Every query of Prometheus in the dashboard and the alerts."""
    board = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query")
    alerts = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
    yield from (rule["expr"] for group in alerts["groups"] for rule in group["rules"])


def test_queries_are_of_metrics_that_exist():
    """Each query names a metric that runs write, and only labels of it; all metrics are shown."""
    shown = set()
    for query in queries():
        names = set(re.findall(r"\bpteforge_\w+", query))
        assert names
        shown |= names
        labels = {label for name in names for label in METRICS[name][1]}
        used = set(re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", query))
        for listed in re.findall(r"by \(([\w, ]+)\)|label_values\(\w+, (\w+)\)", query):
            used |= {label.strip() for text in listed for label in text.split(",") if label}
        assert used <= labels, query
    assert shown == {*METRICS}


def test_labels_of_texts_are_those_of_their_queries():
    """A legend, or the text of an alert, names only labels that its query keeps."""
    board = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    alerts = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
    said = [(t["expr"], t.get("legendFormat", "")) for panel in board["panels"] for t in panel["targets"]]
    said += [(r["expr"], str(r["annotations"])) for group in alerts["groups"] for r in group["rules"]]
    for query, text in said:
        kept = re.findall(r"by \(([\w, ]+)\)", query)
        (name, *_) = re.findall(r"\bpteforge_\w+", query)
        labels = {label.strip() for label in kept[0].split(",")} if kept else {*METRICS[name][1]}
        assert {*re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text)} <= labels, query


def test_the_collector_uses_what_it_defines():
    """Pipelines are made of components that are defined, and all of those are used; dimensions are attributes."""
    config: dict[str, Any] = yaml.safe_load((FOLDER / "otel-collector.yaml").read_text(encoding="utf-8"))
    pipelines = config["service"]["pipelines"].values()
    defined = {name for kind in ("receivers", "processors", "exporters", "connectors") for name in config[kind]}
    assert {name for pipeline in pipelines for names in pipeline.values() for name in names} == defined
    attributes = {dimension["name"] for dimension in config["connectors"]["spanmetrics"]["dimensions"]}
    known = {"zoo", *StageOutcome.__dataclass_fields__}
    assert {name.removeprefix("pteforge.") for name in attributes} <= known
