"""The log as lines of JSON, for programs that collect logs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

VARIABLE = "PTEFORGE_LOG_FORMAT"
"""Environment variable; with ``json``, runs log as `log_json` says."""

_ours = logging.getLogger("pteforge")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        fields: dict[str, Any] = getattr(record, "fields", {"event": "log", "logger": record.name})
        line = {"time": f"{time}Z", "level": record.levelname.lower(), **fields, "message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line).replace("\x7f", r"\u007f")  # the one control character that JSON leaves as it is


def log_json() -> None:
    """Makes this process log JSON to standard error: events of `say`, warnings, errors and crashes."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    _ours.handlers = [handler, *(other for other in _ours.handlers if not isinstance(other, logging.StreamHandler))]
    _ours.propagate = False
    logging.lastResort = handler  # for the logs of libraries, from warnings on
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: _ours.critical("%s", error[1], exc_info=error)


def say(event: str, message: str, level: int = logging.INFO, **fields: Any) -> bool:
    """Logs an event if the log is JSON, and returns whether it is. Fields that are None are left out."""
    if as_json := any(isinstance(handler.formatter, JsonFormatter) for handler in _ours.handlers):
        named = {"event": event} | {name: value for name, value in fields.items() if value is not None}
        record = _ours.makeRecord(_ours.name, level, "", 0, message, (), None, extra={"fields": named})
        _ours.handle(record)
    return as_json


def print_error(text: str) -> None:
    """Writes why a command ends to standard error, in the form of the log."""
    if not say("error", text.removeprefix("error: "), logging.ERROR):
        sys.stderr.write(f"{text}\n")
