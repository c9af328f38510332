"""Command lines of pteforge in processes of their own, which take a tenth of a second each."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Said:
    """How a command ended, and all that it wrote.

    Attributes:
        code: of its exit; the negative number of the signal that ended it.
    """

    code: int
    text: str


_IMPORTED = ["pteforge.tests.faults.__main__", "pteforge.flows.cli.main", "executorch.runtime", "pytest"]
_LIMIT = 60  # seconds
_MEMORY = 4 << 30  # bytes of address space that a command may take in addition


class Commands:
    """Runs command lines in processes that are forked from one that has imported what they need."""

    def __init__(self) -> None:
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(_IMPORTED)

    def run(self, folder: Path, *args: str | Path, env: Mapping[str, str] | None = None) -> Said:
        """Runs `pteforge` in a folder, for a minute at most; what it says goes to the file `said` there."""
        process = self._processes.Process(target=_command, args=(folder, [*map(str, args)], dict(env or {})))
        process.start()
        process.join(_LIMIT)
        if hangs := process.is_alive():
            process.kill()
            process.join()
        text = (folder / "said").read_text(encoding="utf-8", errors="replace")
        assert not hangs, f"pteforge {args} took more than {_LIMIT} s: {text[-2000:]}"
        code: Any = process.exitcode
        process.close()
        return Said(code, text)


def _command(folder: Path, args: list[str], env: dict[str, str]) -> None:
    from pteforge.tests.command import run_command

    os.chdir(folder)
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = ["pteforge", *args]
    code = run_command()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as `pteforge` itself does


def check_said(said: Said, *codes: int) -> None:
    """Checks that a command ended in one of the ways that are documented, and wrote text that is safe to show."""
    assert said.code in (codes or (0, 1, 2)), (said.code, said.text[-3000:])
    assert "Traceback (most recent call last)" not in said.text, said.text[-3000:]
    unsafe = {letter for letter in said.text if not letter.isprintable() and letter not in "\n\t"}
    assert not unsafe, (unsafe, said.text[-3000:])
