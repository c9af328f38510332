"""Prefect's server inside this process."""

from __future__ import annotations

import os
import sys

import pytest
from pteforge.tests.conftest import run_process

_START = """
import time
from aiosqlite import Connection
from pteforge.flows.prefect.embedded_server import EmbeddedServer

threads, stop = [], Connection.stop

def stop_late(connection):
    threads.append(connection._thread)
    connection._tx.put_nowait((None, lambda: time.sleep(1.0)))
    return stop(connection)

Connection.stop = stop_late
server = EmbeddedServer()
try:
    server.wait_until_ready()
except RuntimeError as error:
    print(error)
server.stop()
assert threads
for thread in threads:
    thread.join(60)
"""


@pytest.mark.slow
def test_a_failed_start_leaves_no_traceback(tmp_path):
    """A connection that could not be opened may end late: its thread still finds the event loop."""
    database = {"PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{tmp_path}"}
    done = run_process(sys.executable, "-c", _START, env=os.environ | database, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "could not be started" in done.stdout
    assert "Exception in thread" not in done.stderr
