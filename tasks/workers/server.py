"""The warm server: imports its preload modules once, then forks one process per call.

It has one thread and never runs a stage body itself. It is the parent of all stage processes and the only one that
signals them, so no signal can meet a process id that was given to somebody else meanwhile.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
import types
from dataclasses import dataclass
from typing import NoReturn, Self

from .body import StageProcess
from .parent_death import die_with_parent, parent_death_signal
from .process_memory import own_memory
from .protocol import CALL_FDS, READY, Ended, Started, encode_ended, encode_started


def serve(control_fd: int, parent: int, preload: list[str]) -> None:
    """The main program of the server. Returns when the pool closes its end of the control socket.

    A pool that dies during the warm-up takes the server with it by a signal. Afterwards that signal is off: the end of
    the control socket tells the same, and leaves time to kill the process groups of the calls.
    """
    set_death_signal = parent_death_signal()
    die_with_parent(set_death_signal, parent)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):  # by lines, so that the log of a stage that crashes is complete
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    gc.disable()  # imports make few cycles and many objects: collecting meanwhile takes a third of their time
    for module in preload:
        importlib.import_module(module)
    _require_single_thread()
    gc.collect()
    gc.enable()
    gc.freeze()  # the collector of a stage process leaves these objects alone, so their pages stay shared
    with (
        socket.socket(fileno=control_fd) as control,
        _Server(control, StageProcess(os.getpid(), set_death_signal)) as server,
    ):
        set_death_signal(0)
        control.sendall(READY)
        server.run()


def _require_single_thread() -> None:
    """A fork copies only the thread that forks: locks that others hold would stay locked for ever."""
    tasks = "/proc/self/task"
    count = len(os.listdir(tasks)) if os.path.isdir(tasks) else threading.active_count()  # noqa: PTH112, PTH208 - plain counting
    if count != 1:
        names = ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        raise RuntimeError(
            f"the preload modules left {count - 1} more threads running ({names or 'none of them Python threads'}); "
            "a process cannot be forked safely"
        )


@dataclass
class _Call:
    pid: int
    link: socket.socket

    def kill(self) -> None:
        """Ends the process, which is not reaped yet, and its group, which it may not have made yet."""
        os.kill(self.pid, signal.SIGKILL)
        self.kill_group()

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS denies signals to a group of zombies
            os.killpg(self.pid, signal.SIGKILL)


class _Server:
    def __init__(self, control: socket.socket, stage_process: StageProcess) -> None:
        self._control = control
        self._stage_process = stage_process
        self._calls: dict[int, _Call] = {}
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakeup_end = socket.socketpair()

    def __enter__(self) -> Self:
        self._wakeup.setblocking(False)
        self._wakeup_end.setblocking(False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the pool's process may have blocked some
        signal.set_wakeup_fd(self._wakeup_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
        signal.signal(signal.SIGTERM, _exit_on_signal)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        for call in self._calls.values():
            call.kill()
        for pid in self._calls:
            os.waitpid(pid, 0)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    fds = self._receive()
                    if fds is None:
                        return
                    self._start(fds)
                elif key.fileobj is self._wakeup:
                    with contextlib.suppress(BlockingIOError):
                        self._wakeup.recv(1 << 16)
                    self._reap()
                elif key.data in self._calls:  # nothing is ever sent to us on a link: it was closed
                    self._selector.unregister(key.fileobj)
                    self._calls[key.data].kill()

    def _receive(self) -> list[int] | None:
        """The descriptors of the next call, None at the end."""
        message, fds, _, _ = socket.recv_fds(self._control, 1, CALL_FDS)
        for fd in fds:
            os.set_inheritable(fd, False)  # programs that a body starts must not hold them
        return fds if message else None

    def _start(self, fds: list[int]) -> None:
        if len(fds) != CALL_FDS:  # this process has no descriptors left: the pool sees the link end
            for fd in fds:
                os.close(fd)
            return
        *own_fds, link_fd = fds
        link = socket.socket(fileno=link_fd)
        baseline = own_memory(os.getpid())
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            self._become_stage_process(link, own_fds)
        for fd in own_fds:
            os.close(fd)
        with contextlib.suppress(OSError):  # the pool gave the call up: the selector will tell
            link.sendall(encode_started(Started(pid, baseline)))
        if pid < 0:
            link.close()
        else:
            self._calls[pid] = _Call(pid, link)
            self._selector.register(link, selectors.EVENT_READ, pid)

    def _reap(self) -> None:
        for call in list(self._calls.values()):
            pid, status = os.waitpid(call.pid, os.WNOHANG)
            if pid == 0:
                continue
            call.kill_group()  # what the body started and left behind
            del self._calls[pid]
            with contextlib.suppress(KeyError):  # closed by the pool before
                self._selector.unregister(call.link)
            with contextlib.suppress(OSError):
                call.link.sendall(encode_ended(Ended(os.waitstatus_to_exitcode(status))))
            call.link.close()

    def _become_stage_process(self, link: socket.socket, own_fds: list[int]) -> NoReturn:
        """Closes what belongs to the server, so that the ends of its sockets are seen at once, and runs the body."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._selector.close()
            links = [link, *(call.link for call in self._calls.values())]
            for shared in (self._control, self._wakeup, self._wakeup_end, *links):
                shared.close()
            self._stage_process.run(*own_fds)
        except BaseException:  # noqa: BLE001 - a process boundary
            traceback.print_exc()
        finally:  # whatever happens, a stage process never goes on as a server
            os._exit(os.EX_SOFTWARE)


def _exit_on_signal(signum: int, _frame: types.FrameType | None) -> None:
    sys.exit(128 + signum)
