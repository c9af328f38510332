"""A Prefect server that fails at any one kind of call: files are made every time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    # connections that the proxy breaks off are collected while they are open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FAULTS = ("unavailable", "reset", "stall")
ANY_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=key/)[^/]+|(?<=/name/)[^/]+")


@dataclass
class Proxy:
    """Stands before a server; treats the requests of one kind badly. A kind is a method and a path without ids."""

    server: str
    kind: str = ""
    fault: str = ""
    kinds: set[str] = field(default_factory=set)  # all that came
    spoilt: int = 0  # requests that were not forwarded

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one request, and then whatever comes from either side."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, _ = head.decode().split(" ", 2)
            kind = f"{method} {ANY_ID.sub('ID', urlsplit(path).path)}"
            self.kinds.add(kind)
            if kind == self.kind:
                self.spoilt += 1
                await self._spoil(reader, writer)
                return
            place = urlsplit(self.server)
            answers, requests = await asyncio.open_connection(place.hostname, place.port)
            if b"upgrade: websocket" not in head.lower():  # else it needs its connection header
                head = re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head).replace(
                    b"\r\n", b"\r\nConnection: close\r\n", 1
                )
            requests.write(head)
            back = asyncio.create_task(_copy(answers, writer))
            forth = asyncio.create_task(_copy(reader, requests))
            await back
            forth.cancel()
            requests.close()
            await requests.wait_closed()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _spoil(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match self.fault:
            case "unavailable":
                writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
            case "reset":
                writer.transport.abort()
            case "stall":
                await reader.read()  # until the client gives up


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while content := await reader.read(1 << 16):
        writer.write(content)
        await writer.drain()


@pytest.fixture
def proxy(server) -> Iterator[tuple[Proxy, str]]:
    """A proxy, and the URL of the API behind it."""
    made, ports, loop = Proxy(server), queue.Queue(), asyncio.new_event_loop()
    stopping = asyncio.Event()

    async def serve() -> None:
        async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as listener:
            ports.put(listener.sockets[0].getsockname()[1])
            await stopping.wait()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        thread = threading.Thread(target=runner.run, args=(serve(),))
        thread.start()
        yield made, f"http://127.0.0.1:{ports.get(timeout=60)}/api"
        loop.call_soon_threadsafe(stopping.set)
        thread.join()


# Exports as lines of standard input say, all in one process; prints exit codes and whether Prefect was given up.
EXPORTS = """
import json, sys
from pathlib import Path
from pteforge.flows.run_flow import run_flow
from pteforge.flows.session import open_session
for line in sys.stdin:
    out, overrides = json.loads(line)
    with open_session(Path("zoo.yaml"), out=Path(out), overrides=overrides) as session:
        outcome = run_flow(session)
    print(json.dumps([outcome.exit_code, session.server_lost]), flush=True)
"""


def test_every_kind_of_call(project, proxy):
    """Whatever kind of call is answered with 503, reset or never answered: exit code 0, and all files are there."""
    made, url = proxy
    gate = {"evaluator": "scoring:finite", "floor": 0.5}
    project.write_zoo(
        {"linear": "nets:linear"}, ("scored",), {"scored": {"extends": "portable-fp32", "accuracy": gate}}
    )
    environment = {"PREFECT_API_URL": url, "PREFECT_CLIENT_MAX_RETRIES": "1", "PREFECT_API_REQUEST_TIMEOUT": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", EXPORTS],
        cwd=project.folder,
        env=project.environment(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def export(seed: int) -> bool:
        """Finds stages and runs two that were not run before; returns whether Prefect was given up."""
        out = project.folder / f"out-{seed}"
        process.stdin.write(json.dumps([str(out), [f"recipes.scored.accuracy.floor={seed / 1000}"]]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, process.stderr.read()
        code, lost = json.loads(line)
        assert code == 0
        assert sorted(path.name for path in out.rglob("*.pte")) == ["scored.pte"]
        return lost

    with process:
        assert not export(0)
        kinds = sorted(made.kinds)
        assert {"POST /api/flow_runs/", "POST /api/flow_runs/ID/set_state", "POST /api/logs/"} <= set(kinds)
        lost, met = set(), set()
        for seed, (made.kind, made.fault) in enumerate(((k, f) for k in kinds for f in FAULTS), start=1):
            made.spoilt = 0
            if export(seed):
                lost.add(made.kind)
            if made.spoilt:
                met.add(made.kind)
        process.stdin.close()
        assert "Traceback" not in process.stderr.read()
    assert "POST /api/flow_runs/" in lost
    assert set(kinds) - met <= {"GET /api/admin/version", "GET /api/flows/ID"}  # asked for once per process
