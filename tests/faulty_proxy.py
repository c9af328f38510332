"""A proxy before an HTTP server that treats some of the requests badly."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

HTTP_FAULTS = ("unavailable", "error", "reset", "stall", "cut", "lost reply")
_ANSWERS = {"unavailable": ("503 Service Unavailable", "SlowDown"), "error": ("500 Internal Error", "InternalError")}
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


@dataclass
class Proxy:
    """Forwards requests, one for each connection.

    Attributes:
        server: URL of the server.
        choose: what to do with a request, from its method and target: one of `HTTP_FAULTS`, or nothing. "cut" ends the
            answer in the middle; "lost reply" lets the server do what was asked, and the client hears nothing of it.
    """

    server: str
    choose: Callable[[str, str], str]
    _tasks: set[Any] = field(default_factory=set, init=False)  # nobody else keeps those of broken connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Treats one request, and then whatever comes from either side."""
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._treat(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _treat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with _closing(writer):
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.decode().split(" ", 2)
                match self.choose(method, target):
                    case "reset":
                        writer.transport.abort()
                    case "stall":
                        await reader.read()  # until the client gives up
                    case "unavailable" | "error" as fault:
                        await _refuse(fault, method, head, reader, writer)
                    case fault:
                        await self._forward(fault, head, reader, writer)

    async def _forward(
        self, fault: str, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if b"upgrade: websocket" not in head.lower():  # else it needs its connection header
            head = re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        place = urlsplit(self.server)
        answers, requests = await asyncio.open_connection(place.hostname, place.port)
        async with _closing(requests):
            requests.write(head)
            forth = asyncio.create_task(_copy(reader, requests))
            try:
                if fault:
                    answer = await _answer(answers, writer)
                    writer.write(answer[: len(answer) // 2] if fault == "cut" else b"")
                    with contextlib.suppress(OSError):
                        await writer.drain()
                    writer.transport.abort() if fault == "lost reply" else None
                else:
                    await _copy(answers, writer)
            finally:
                forth.cancel()
                await asyncio.gather(forth, return_exceptions=True)


async def _answer(answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The whole answer, after a client that waits for it was told to send the body of its request."""
    answer = b""
    while content := await answers.read(1 << 16):
        answer += content
        if answer.startswith(b"HTTP/1.1 100 "):
            told, end, answer = answer.partition(b"\r\n\r\n")
            writer.write(told + end)
            await writer.drain()
    return answer


async def _refuse(
    fault: str, method: str, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    if (length := _LENGTH.search(head)) and b"100-continue" not in head.lower():
        await reader.readexactly(int(length[1]))  # or closing the connection would lose the answer
    status, code = _ANSWERS[fault]
    text = "" if method == "HEAD" else f"<Error><Code>{code}</Code><Message>try again</Message></Error>"
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
    await writer.drain()


@contextlib.asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Closes the connection whatever happens, so that none is collected open while another test runs."""
    try:
        yield
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while content := await reader.read(1 << 16):
        writer.write(content)
        await writer.drain()


@contextlib.contextmanager
def run_proxy(proxy: Proxy) -> Iterator[str]:
    """Runs a proxy in a thread of its own; its URL."""
    ports: queue.Queue[int] = queue.Queue()
    loop: Any = asyncio.new_event_loop()
    stopping = asyncio.Event()

    async def serve() -> None:
        async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as listener:
            ports.put(listener.sockets[0].getsockname()[1])
            await stopping.wait()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        thread = threading.Thread(target=runner.run, args=(serve(),))
        thread.start()
        try:
            yield f"http://127.0.0.1:{ports.get(timeout=60)}"
        finally:
            loop.call_soon_threadsafe(stopping.set)
            thread.join()
