"""Reports of runs: lines of JSON, OpenTelemetry's spans, and metrics for node_exporter's textfile collector."""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...artifacts.runs import RunRecord, StageOutcome
from ...errors import InputError, StoreError, first_line, printable
from ...tasks.engine.runner import Done, StageCall
from ...tasks.lowering.runs import outcome_of, outcome_of_failure
from .json_log import say
from .outcome import ModelOutcome
from .progress import ZooObserver

if TYPE_CHECKING:
    from .session import Session

_log = logging.getLogger(__name__)

_LOG_LINES = 15  # of a failed step
_FLUSH = 5.0  # seconds for a collector to take the last spans
_QUEUE = 65536  # spans: a rerun of a large zoo makes thousands at once, and by default 2048 are kept
_OF_STAGES = ("stage", "step", "recipes", "key", "status", "seconds", "queued", "peak_memory")
_SCOPES = ("pteforge", "prefect")  # whose spans are sent: FastAPI, in the embedded server, traces each request
_ASKED = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

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
"""Help and labels of each metric. Later runs add to metrics that end in `_total`, and replace the others."""

_Path = tuple[tuple[str, str], ...]
"""A part of a run, such as ``(("model", "net"), ("recipe", "xnnpack-fp32"))``; empty for the whole."""


class Telemetry(ZooObserver):
    """Reports each stage, recipe, model and the run when it ends."""

    def __init__(self, session: Session, metrics: Path | None) -> None:
        """Begins the span of the run, within the current one: in a deployed run, that of Prefect's flow run."""
        self._session, self._metrics = session, metrics
        self._run: dict[str, Any] = {"run": session.id, "zoo": session.zoo}
        self._starts: dict[str, float] = {}  # of stages that run, by slot
        self._heard: set[str] = set()  # slots of stages that have ended
        self._provider = tracer_provider()
        self._open: dict[_Path, Any] = {}  # spans
        self._lock = RLock()
        if self._provider:
            from opentelemetry import context, trace  # noqa: PLC0415 - an extra, imported on request

            self._trace, self._tracer = trace, self._provider.get_tracer("pteforge", __version__)
            context.attach(trace.set_span_in_context(self._opened((), time.time())))  # for Prefect, if it starts here
        say("run_started", f"{session.zoo}: {len(session.models)} models", **self._run, models=len(session.models))

    def started(self, call: StageCall) -> None:
        self._starts[call.slot] = time.time()
        where: dict[str, Any] = {"model": call.model, "stage": call.stage.name, "step": str(call.id)}
        say("stage_started", f"{call.title}: started", **self._run, **where)

    def finished(self, done: Done) -> None:
        self._stage(outcome_of(done), done.call.submitted)

    def failed(self, call: StageCall, error: Exception) -> None:
        self._stage(outcome_of_failure(call.model, call.id, call.recipes, error), call.submitted)

    def completed(self, outcome: ModelOutcome) -> None:
        for stage in outcome.stages:  # those that ran and were not heard of are reported by the process that ran them
            if not outcome.ran and stage.slot not in self._heard:
                self._stage(stage)
        for recipe in outcome.recipes:
            facts = {name: getattr(recipe, name) for name in ("status", "seconds", "size", "sha256", "verified")}
            facts |= {"file": str(recipe.path) if recipe.path else None}
            facts |= {name.replace(" ", "_"): fact.value for name, fact in recipe.columns.items()}
            if failure := recipe.failure:
                facts |= {"failed_step": failure.step, "log": "\n".join(failure.log_tail.splitlines()[-_LOG_LINES:])}
            path = (("model", recipe.model), ("recipe", recipe.recipe))
            self._report(path, facts, failure.problem if failure else None)
        self._report((("model", outcome.model),), {"status": outcome.status, "cached": not outcome.ran})

    def ended(self, record: RunRecord) -> None:
        """Reports the models that did not end, and the run."""
        for path in sorted(filter(None, [*self._open]), key=len, reverse=True):
            self._report(path, {"status": record.ending})
        stages = [stage.status for of_model in record.models.values() for stage in of_model]
        facts = {f"stages_{status}": stages.count(status) for status in ("ran", "cached", "failed")}
        release = record.release and record.release.describe()
        self._report((), {"status": record.ending, "seconds": round(record.seconds, 3), **facts, "release": release})
        if self._provider:
            _sender(self._provider)()
        if self._metrics:
            write_metrics(self._metrics, self._session, record)

    def _stage(self, stage: StageOutcome, submitted: float = 0.0) -> None:
        now = time.time()
        began = self._starts.pop(stage.slot, now - stage.seconds if stage.status == "ran" else now)
        self._heard.add(stage.slot)
        recipe = [("recipe", stage.recipes[0])] if len(stage.recipes) == 1 else []
        path = (("model", stage.slot.partition("/")[0]), *recipe, ("stage", stage.step))
        facts = {name: getattr(stage, name) for name in _OF_STAGES} | {"cached": stage.status == "cached"}
        if self._provider:
            self._opened(path[:-1], min(began, submitted or began))
            self._opened(path, began)
        self._report(path, facts, stage.message if stage.status == "failed" else None, now)

    def _report(self, path: _Path, facts: dict[str, Any], problem: str | None = None, now: float = 0.0) -> None:
        """Logs a part of the run that has ended, and ends its span. `problem` is why it failed, if that is known."""
        kind = path[-1][0] if path else "run"
        failed = facts["status"] not in ("ran", "made", "cached", "completed", "not applicable")
        text = f"{' '.join(name for _, name in path) or self._session.zoo}: {facts['status']}"
        level, facts = logging.ERROR if failed else logging.INFO, {**facts, "problem": problem}
        say(f"{kind}_finished", f"{text}: {problem}" if problem else text, level, **self._run | dict(path) | facts)
        if self._provider:
            span = self._opened(path, now := now or time.time())
            span.set_attributes(_attributes(facts))
            code = self._trace.StatusCode
            span.set_status(code.ERROR if failed else code.OK, (problem or facts["status"]) if failed else None)
            span.end(int(1e9 * now))
            self._open.pop(path)

    def _opened(self, path: _Path, began: float) -> Any:
        """The span of a part of the run, begun if it is not open."""
        with self._lock:
            if path not in self._open:
                kind, name = path[-1] if path else ("run", self._session.zoo)
                within = self._trace.set_span_in_context(self._opened(path[:-1], began)) if path else None
                facts, start = _attributes(self._run | dict(path)), int(1e9 * began)
                self._open[path] = self._tracer.start_span(f"{kind} {name}", within, attributes=facts, start_time=start)
            return self._open[path]


def _attributes(facts: dict[str, Any]) -> dict[str, Any]:
    return {f"pteforge.{name}": value for name, value in facts.items() if value is not None}


@cache
def _sender(provider: Any) -> Callable[[], None]:
    """Makes a function that sends the remaining spans; it waits only once for a collector that stalls."""
    asked: SimpleQueue[Event] = SimpleQueue()

    def serve() -> None:
        while True:
            sent = asked.get()
            provider.force_flush()  # has no limit of its own
            sent.set()

    def send() -> None:
        if not given_up.is_set():
            asked.put(sent := Event())
            if not sent.wait(_FLUSH):
                given_up.set()
                _log.warning("OpenTelemetry's collector has not taken all spans within %.0f s: some are lost", _FLUSH)

    given_up = Event()
    Thread(target=serve, name="spans", daemon=True).start()  # now: at exit, Python 3.12 starts no threads
    return send


@cache
def tracer_provider() -> Any:
    """Sends spans to the collector that OpenTelemetry's environment variables name; None if they name none.

    Call it before Prefect begins the span of a flow run.
    """
    if not any(map(os.environ.get, _ASKED)) or os.environ.get(_ASKED[0]) == "none":
        return None
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an extra, as above
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        _log.warning('%s asks for spans, which need: pip install "pteforge[otel]"', " or ".join(_ASKED))
        return None
    if not isinstance(provider := trace.get_tracer_provider(), TracerProvider):  # else the program has its own
        if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
            os.environ.setdefault("OTEL_SERVICE_NAME", "pteforge")
        provider = TracerProvider(shutdown_on_exit=False)  # which would wait for half a minute
        atexit.register(_sender(provider))  # the span of Prefect's flow run ends after the run
        processor = BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=_QUEUE)
        send = processor.on_end
        processor.on_end = lambda span: send(span) if span.instrumentation_scope.name in _SCOPES else None
        provider.add_span_processor(processor)
        trace.set_tracer_provider(provider)
    return provider


def check_metrics_file(file: Path) -> Path:
    """Raises InputError if metrics cannot be written to it."""
    if not file.is_dir() and (file.suffix != ".prom" or not file.parent.is_dir()):
        raise InputError(f"--metrics {file} is no folder, and no file *.prom in an existing folder")
    return file


def write_metrics(file: Path, session: Session, record: RunRecord) -> None:
    """Adds a run to the metrics in a file, or in its zoo's file in a folder; a failure is a warning."""
    if file.is_dir():
        file /= f"pteforge_{re.sub(r'[^A-Za-z0-9_.-]', '_', record.zoo)}.prom"
    try:
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other runs may add to it, too
            _add_run(file, session, record)
    except (OSError, ValueError, LookupError, StoreError) as error:
        _log.warning("the metrics in %s are not those of this run: %s", file, first_line(error))


def _add_run(file: Path, session: Session, record: RunRecord) -> None:
    import prometheus_client as client  # noqa: PLC0415 - imported on request
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
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        values = sample.labels
        if not sample.name.startswith("pteforge_"):
            raise ValueError("another program writes that file")
        if sample.name in METRICS and (values["zoo"] != printable(zoo) or values.get("model") in models):
            add(sample.name, sample.value, *(values[label] for label in METRICS[sample.name][1]))
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
    client.write_to_textfile(str(file), registry)
