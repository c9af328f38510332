"""How our flows use Prefect: what to switch off for runs on one machine, and how to end them without leftovers."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .session import Session, Unobserved

_EMBEDDED = {
    # the task run recorder writes one row per transaction by default, which keeps SQLite busy for many seconds
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # a server that lives as long as one command has nothing to schedule, and nobody to report to
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
}


_SEND_LIMIT = 5.0  # seconds

_QUIET = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL", "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL"}
"""Prefect's log lines go to its server; the terminal is for our own progress."""


def quiet_console() -> None:
    """Before Prefect is imported: nothing of its log on the terminal, unless the user has set a level."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def server_configured() -> bool:
    """Whether a Prefect server is named in one of the places where Prefect looks; found out without importing it."""
    if os.environ.get("PREFECT_API_URL"):
        return True
    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    profiles = _toml(Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml")))
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    environment = Path(".env")
    return bool(
        _at(profiles, "profiles", active, "PREFECT_API_URL")
        or _at(_toml(Path("prefect.toml")), "api", "url")
        or _at(_toml(Path("pyproject.toml")), "tool", "prefect", "api", "url")
        or (environment.is_file() and "PREFECT_API_URL=" in environment.read_text(errors="replace"))
    )


def _toml(path: Path) -> dict[str, Any]:
    """A file's content; nothing where there is no such file, or none that can be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _at(tree: Any, *names: str | None) -> Any:
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def set_embedded_defaults() -> None:
    """Before Prefect is imported: settings for its embedded server, where the user has set none."""
    for name, value in _EMBEDDED.items():
        os.environ.setdefault(name, value)


@contextmanager
def local_run(server: str | None) -> Iterator[None]:
    """Settings for flows that we start ourselves.

    They have no heartbeat: its thread makes each flow wait about a second at its end. Deployed flows keep it; Prefect
    finds dead runs by it.

    Args:
        server: URL of the API to use; None for the configured one.
    """
    from prefect.settings import (  # noqa: PLC0415 - slow import
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        temporary_settings,
    )

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None, **({PREFECT_API_URL: server} if server else {})}):
        yield


@contextmanager
def stop_workers_on_abort(session: Session) -> Iterator[None]:
    """Whatever ends a flow early (interrupt, cancellation, a failing server) ends its worker processes at once."""
    try:
        yield
    except BaseException:
        session.observer = Unobserved()  # that stages were stopped is no news
        session.workers.stop()
        raise


def send_what_is_queued() -> None:
    """Sends the log lines and events that Prefect has not sent yet; it would do so when Python exits."""
    from prefect.events.worker import EventsWorker  # noqa: PLC0415 - slow import
    from prefect.logging.handlers import APILogHandler  # noqa: PLC0415 - likewise

    EventsWorker.drain_all(timeout=_SEND_LIMIT)
    APILogHandler().flush()
