"""What is said while another process has the lease that is needed."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from pteforge.artifacts import lease
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.lease import LocalLeases

KEY = digest_bytes(b"a stage")
_HOLD = """
import sys, time
from pathlib import Path
from pteforge.artifacts.lease import LocalLeases
with LocalLeases(Path(sys.argv[1])).hold(sys.argv[2], "net edge"):
    print("held", flush=True)
    time.sleep(100)
"""


@contextlib.contextmanager
def holder(folder) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder), KEY], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("stopped", [False, True])
def test_wait_is_told_once(tmp_path, monkeypatch, caplog, stopped):
    """Whoever waits says after a while what it waits for, and which process to continue or end if that is stopped."""
    monkeypatch.setattr(lease, "WAIT_UNTOLD", 0.2)
    with holder(tmp_path) as other:
        if stopped:
            other.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        threading.Timer(1.0, other.kill).start()
        with LocalLeases(tmp_path).hold(KEY, "net edge"):
            pass
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith(f"waiting for process {other.pid}")
    assert said.endswith(", which runs net edge")
    assert (f"`kill -CONT {other.pid}` continues it" in said) == stopped


def test_short_wait_is_not_told(tmp_path, caplog):
    """Nothing is said of a wait that ends soon."""
    with holder(tmp_path) as other:
        threading.Timer(0.2, other.kill).start()
        began = time.monotonic()
        with LocalLeases(tmp_path).hold(KEY, "net edge"):
            assert time.monotonic() - began > 0.1
    assert not caplog.records
