"""How our flows use Prefect: what to switch off for runs on one machine, and how to end them without leftovers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .session import Session

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
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_CLI_PROMPT": "false",
}


_QUIET = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
"""Prefect's log lines go to its server; the terminal is for our own progress."""


def quiet_console() -> None:
    """Before Prefect is imported: nothing of its log on the terminal, unless the user has set a level."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def server_configured() -> bool:
    """Whether the environment or a profile names a Prefect server; found out without importing Prefect."""
    if os.environ.get("PREFECT_API_URL"):
        return True
    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml"))
    return profiles.is_file() and "PREFECT_API_URL" in profiles.read_text(errors="replace")


def set_embedded_defaults() -> None:
    """Before Prefect is imported: settings for its embedded server, where the user has set none."""
    if not server_configured():
        for name, value in _EMBEDDED.items():
            os.environ.setdefault(name, value)


@contextmanager
def without_heartbeat() -> Iterator[None]:
    """Flows that we start ourselves end at once: a heartbeat thread makes each flow wait about a second at its end.

    Deployed flows keep it; Prefect finds dead runs by it.
    """
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings  # noqa: PLC0415 - slow import

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@contextmanager
def stop_workers_on_abort(session: Session) -> Iterator[None]:
    """Whatever ends a flow early (interrupt, cancellation, a failing server) ends its worker processes at once."""
    try:
        yield
    except BaseException:
        session.workers.stop()
        raise
