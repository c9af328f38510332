"""What libraries write to standard error is dropped, and nothing else is."""

from __future__ import annotations

import logging
import sys
import threading
import warnings

import torch
from pteforge.runtime.quiet import quiet

THEIRS = torch.__file__


def record(path: str, level: int) -> logging.LogRecord:
    """What code in a file logs."""
    return logging.LogRecord("torch", level, path, 1, f"logged at {level}", (), None)


def say(path: str) -> None:
    """Warns, logs and writes, as code in a file does."""
    warnings.warn_explicit(f"warned in {path}", FutureWarning, path, 1)
    for level in (logging.WARNING, logging.ERROR):
        logging.StreamHandler().handle(record(path, level))
    exec(compile("print('written', end='', file=sys.stderr)", path, "exec"), {"sys": sys})  # noqa: S102 - as if it were there


def test_what_is_dropped(capsys):
    """Of a library, only errors that it logs are left; of the user's code, everything. Afterwards all is as before."""
    before, emit = sys.stderr, logging.StreamHandler.emit
    with warnings.catch_warnings(action="always", record=True) as caught, quiet():
        say(THEIRS)
        assert caught == []
        assert capsys.readouterr().err == "logged at 40\n"
        say(__file__)
        assert sys.stderr.isatty() == before.isatty()
        said = capsys.readouterr().err
    assert said == "logged at 30\nlogged at 40\nwritten"
    assert [warning.filename for warning in caught] == [__file__]
    assert (sys.stderr, logging.StreamHandler.emit) == (before, emit)


def test_handlers_from_before_and_of_others(capsys, tmp_path):
    """A handler that a library made earlier is quiet, too; a handler that writes to a file is not."""
    early, file = logging.StreamHandler(), logging.FileHandler(tmp_path / "log")
    with quiet():
        for handler in (early, file):
            handler.handle(record(THEIRS, logging.WARNING))
    file.close()
    assert capsys.readouterr().err == ""
    assert (tmp_path / "log").read_text() == "logged at 30\n"


def test_two_threads():
    """A second thread passes through, so that the first one restores what it has found."""
    before = sys.stderr
    with quiet():
        changed = sys.stderr

        def enter() -> None:
            with quiet():
                seen.append(sys.stderr)

        seen: list[object] = []
        other = threading.Thread(target=enter)
        other.start()
        other.join()
        assert seen == [changed]
        assert sys.stderr is changed
    assert sys.stderr is before
