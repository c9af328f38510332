"""Counters of runs, in a file for Prometheus: node_exporter's textfile collector reads it."""

from __future__ import annotations

import fcntl
import logging
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...artifacts.runs import RunRecord
from ...errors import InputError, StoreError, first_line, printable

if TYPE_CHECKING:
    from .session import Session

_log = logging.getLogger(__name__)

METRICS = {
    "pteforge_runs_total": ("Runs, by how they ended.", ("zoo", "status")),
    "pteforge_models_total": ("Models of all runs: made, cached or failed.", ("zoo", "status")),
    "pteforge_stages_total": ("Stages of all runs: ran, cached or failed.", ("zoo", "stage", "status")),
    "pteforge_stage_seconds_total": ("Seconds that stages ran.", ("zoo", "stage")),
    "pteforge_last_run_timestamp_seconds": ("When the last run ended.", ("zoo",)),
    "pteforge_last_run_duration_seconds": ("How long the last run took.", ("zoo",)),
    "pteforge_last_success_timestamp_seconds": ("When a run last had all files of a model.", ("zoo", "model")),
    "pteforge_store_size_bytes": ("Size of all objects in the store, after the last run.", ("zoo",)),
}
"""Help and labels of each metric. Later runs add to those that end in `_total`, and replace the others."""


def check_place(place: Path) -> Path:
    """Raises InputError if metrics cannot be written there."""
    if not place.is_dir() and (place.suffix != ".prom" or not place.parent.is_dir()):
        raise InputError(f"--metrics {place} is no folder, and no file *.prom in an existing folder")
    return place


def write_metrics(place: Path, session: Session, record: RunRecord) -> None:
    """Adds a run to the metrics in a file, or in its zoo's file in a folder; a failure is a warning."""
    if place.is_dir():
        place /= f"pteforge_{re.sub(r'[^A-Za-z0-9_.-]', '_', record.zoo)}.prom"
    try:
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other runs may add to it, too
            _write(place, session, record)
    except (OSError, ValueError, LookupError, StoreError) as error:
        _log.warning("the metrics in %s are not those of this run: %s", place, first_line(error))


def _write(place: Path, session: Session, record: RunRecord) -> None:
    import prometheus_client as client  # noqa: PLC0415 - only where it is asked for
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - as above

    client.disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no types
    registry, metrics = client.CollectorRegistry(), dict[str, Any]()
    for name, (text, labels) in METRICS.items():
        kind = client.Counter if name.endswith("_total") else client.Gauge
        metrics[name] = kind(name, text, labels, registry=registry)

    def add(name: str, value: float, *labels: str) -> None:
        metric = metrics[name].labels(*map(printable, labels))
        (metric.inc if name.endswith("_total") else metric.set)(value)

    zoo, now, models = record.zoo, time.time(), {*map(printable, session.loaded.zoo.models), None}
    text = place.read_text(encoding="utf-8") if place.exists() else ""
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        of = sample.labels
        if not sample.name.startswith("pteforge_"):
            raise ValueError("another program writes that file")
        if sample.name in METRICS and (of["zoo"] != printable(zoo) or of.get("model") in models):
            add(sample.name, sample.value, *(of[label] for label in METRICS[sample.name][1]))
    add("pteforge_runs_total", 1, zoo, record.ending)
    add("pteforge_last_run_timestamp_seconds", now, zoo)
    add("pteforge_last_run_duration_seconds", record.seconds, zoo)
    add("pteforge_store_size_bytes", sum(stored.size for stored in session.store.objects()), zoo)
    for outcome in session.progress.outcomes.values():
        add("pteforge_models_total", 1, zoo, outcome.status)
        if outcome.status in ("made", "cached") and not outcome.until:
            add("pteforge_last_success_timestamp_seconds", now, zoo, outcome.model)
    for stage in (stage for stages in record.models.values() for stage in stages):
        add("pteforge_stages_total", 1, zoo, stage.stage, stage.status)
        if stage.status == "ran":
            add("pteforge_stage_seconds_total", stage.seconds, zoo, stage.stage)
    client.write_to_textfile(str(place), registry)
