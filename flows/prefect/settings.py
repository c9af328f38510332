"""Prefect's settings for runs on one machine, and how to end them cleanly."""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...artifacts.files import replace_file
from ...errors import InputError
from ..run.request import BLOCK, ExportRequest

if TYPE_CHECKING:
    from ...artifacts.runs import RunRecord
    from ...tasks.results.delivered import Failure
    from ..run.session import Session

_EMBEDDED = {
    # by default the task run recorder writes one row per transaction, which keeps SQLite busy for many seconds
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "100",
    "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "5",
    # a run of a large zoo is tens of megabytes; those of 30 days are kept, and events as long as Prefect keeps them
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "true",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(30 * 24 * 3600),
    "PREFECT_SERVER_SERVICES_DB_VACUUM_BATCH_SIZE": "50",
    # a server that lives for one command has nothing to schedule or report
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
    # Registering block types, for the catalog in the UI, takes half a second. Prefect notes in its home that it is
    # done, so that later servers skip it: without registering, that note must not be written either.
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    "PREFECT_CLI_PROMPT": "false",
}


_SEND_LIMIT = 5.0  # seconds


def quiet_console() -> None:
    """Keeps Prefect's log off the terminal, unless the user has set a level. Call before Prefect is imported."""
    for name in ("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "PREFECT_LOGGING_INTERNAL_LEVEL"):
        os.environ.setdefault(name, "CRITICAL")


def server_configured() -> bool:
    """Whether a Prefect server is configured; does not import Prefect."""
    return bool(_configured("PREFECT_API_URL", "api", "url"))


def refresh_configured() -> bool:
    """Whether Prefect's setting asks to run cached stages again; does not import Prefect."""
    setting = _configured("PREFECT_TASKS_REFRESH_CACHE", "tasks", "refresh_cache")
    return setting.lower() in ("true", "1", "t", "yes", "y", "on")


def open_configured(request: ExportRequest, **options: Any) -> AbstractContextManager[Session]:
    """Opens a session with what Prefect has configured: a store's block, and `refresh`."""
    from ..run.session import open_session  # noqa: PLC0415 - slow import, and commands need the other settings

    request = request.model_copy(update={"refresh": request.refresh or refresh_configured()})
    return open_session(request, store_url=store_url, **options)


def by_pool(session: Session, pool: str, changes: Mapping[str, Any]) -> tuple[RunRecord | None, Failure]:
    """A run of models on a work pool, with fields of the request changed: see `pool.run_part`."""
    if not server_configured():
        raise InputError(f"the work pool {pool!r} is on a Prefect server, and none is configured: set PREFECT_API_URL")
    import asyncio  # noqa: PLC0415 - other commands need neither

    from .pool import run_part  # noqa: PLC0415 - as above; it imports Prefect, which takes seconds

    return asyncio.run(run_part(session, pool, changes))


def store_url(store: str | None) -> str | None:
    """The URL of a store that may be named by a Prefect block; raises InputError if no server has it."""
    if store is None or not store.startswith(BLOCK):
        return store
    if not server_configured():
        raise InputError(f"the store {store} is kept by a Prefect server; set PREFECT_API_URL")
    from .server import open_block  # noqa: PLC0415 - imports Prefect, which is slow

    return open_block(store.removeprefix(BLOCK))


def _configured(variable: str, *path: str) -> str:
    """A setting from the sources that Prefect reads, in its order; empty if none has it."""
    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    profiles = _toml(Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml")))
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    for value in (
        os.environ.get(variable),
        _dotenv(Path(".env")).get(variable),
        _at(_toml(Path("prefect.toml")), *path),
        _at(_toml(Path("pyproject.toml")), "tool", "prefect", *path),
        _at(profiles, "profiles", active, variable),
    ):
        if value not in (None, ""):
            return str(value)
    return ""


def _dotenv(path: Path) -> dict[str, str]:
    """Variables of a file of ``NAME=VALUE`` lines; empty if it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines)
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}


def _toml(path: Path) -> dict[str, Any]:
    """A file's content; empty if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _at(tree: Any, *names: str | None) -> Any:
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def set_embedded_defaults() -> None:
    """Sets what the user has not set, for the embedded server. Call before Prefect is imported."""
    for name, value in _EMBEDDED.items():
        os.environ.setdefault(name, value)


@contextmanager
def local_run(server: str | None) -> Iterator[None]:
    """Settings for flows that we start ourselves; `server` is the URL of an API, None for the configured one.

    The heartbeat is off, since its thread delays the end of each flow by about a second. Deployed flows keep it:
    Prefect detects dead runs by it. Unless the user has set the number of retries, clients give up a lost server after
    a quarter of a minute instead of a minute.
    """
    from prefect.settings import (  # noqa: PLC0415 - slow import
        PREFECT_API_SSL_CERT_FILE,
        PREFECT_API_URL,
        PREFECT_CLIENT_MAX_RETRIES,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        temporary_settings,
    )

    with ExitStack() as stack:
        changes: dict[Any, Any] = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
        if not _configured("PREFECT_CLIENT_MAX_RETRIES", "client", "max_retries"):
            changes[PREFECT_CLIENT_MAX_RETRIES] = 3
        if server:
            changes[PREFECT_API_URL] = server
            changes[PREFECT_API_SSL_CERT_FILE] = _one_certificate()
            # processes of a task runner would each start a server of their own
            environment = {setting.name: str(value) for setting, value in changes.items() if value}
            stack.callback(os.environ.update, {name: os.environ[name] for name in environment if name in os.environ})
            for name in environment:
                stack.callback(os.environ.pop, name, None)
            os.environ.update(environment)
        stack.enter_context(temporary_settings(changes))
        yield


def _one_certificate() -> str:
    """A file in Prefect's home with one certificate, for connections that need none.

    Each task has several of Prefect's clients, which read all certificates even for ``http://``: 25 ms each.
    """
    import certifi  # noqa: PLC0415 - slow import
    from prefect.settings import PREFECT_HOME  # noqa: PLC0415 - as above

    end = "-----END CERTIFICATE-----\n"
    content = (Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end).encode()
    file = PREFECT_HOME.value() / "pteforge.pem"
    if not (file.is_file() and file.read_bytes() == content):
        replace_file(file, content, file.parent)
    return str(file)


def redact_workspaces() -> None:
    """Removes the environment, with its secrets, from the files that Prefect's process workers keep of our flows' runs.

    A worker writes it to a temporary folder, for hooks, which our flows do not have, and leaves it there if killed.
    """
    for path in Path(tempfile.gettempdir()).glob("prefect-workspace-attempt-*/workspace.json"):
        with suppress(OSError, ValueError, AttributeError):  # another user's, or gone
            manifest = json.loads(path.read_bytes())
            if manifest.get("environment") and str(manifest.get("runtime_entrypoint")).startswith("pteforge."):
                content = json.dumps(manifest | {"environment": {}, "hook_command": None}).encode()
                replace_file(path, content, path.parent)


def send_what_is_queued() -> None:
    """Sends the log lines and events that Prefect would send when Python exits."""
    from prefect.events.worker import EventsWorker  # noqa: PLC0415 - slow import
    from prefect.logging.handlers import APILogHandler  # noqa: PLC0415 - slow import

    EventsWorker.drain_all(timeout=_SEND_LIMIT)
    APILogHandler().flush()
