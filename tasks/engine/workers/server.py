"""The warm server: imports its preload modules once, then forks one process per call.

Where the system's libraries do not survive a fork, as on macOS, it imports nothing and starts each process afresh.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import operator
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from ....errors import ObjectDamaged, ObjectMissing, from_user_code, is_bad_input, whole_message
from ..keys.loaded import code_at_start, note_loaded
from ..stage import reporter
from .memory import children, own_memory
from .protocol import CALL_FDS, PROCESS_FDS, READY, Answer, CallRequest, Ended, ProgressWriter, Started

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def process_control() -> Callable[[int, int], None]:
    """Returns prctl(2) of an option and its value; raises OSError if the kernel refuses.

    The library is looked up here, because a freshly forked process should do as little as possible. Without prctl the
    function does nothing: processes end only when their socket does, and what leaves their group outlives them.
    """
    if sys.platform != "linux":
        return lambda _option, _value: None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

    def control(option: int, value: int) -> None:
        if prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl({option})")

    return control


def die_with_parent(control: Callable[[int, int], None], parent: int) -> None:
    """Has this process killed when its parent, process `parent`, ends; exits at once if it has ended.

    The kernel takes the *thread* that forked for the parent (see prctl(2)), so that thread must live long enough.
    """
    control(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans(control: Callable[[int, int], None]) -> None:
    """Makes this process, rather than init, the parent of descendants whose parents have ended.

    So a daemon, which forks twice and leaves its group, stays in the tree of the process that it comes from.
    """
    control(_PR_SET_CHILD_SUBREAPER, 1)


_MESSAGE_LIMIT = 4000
_ORPHANS_LIMIT = 3.0  # seconds at the server's end for what calls left behind
_ORPHANS_PAUSE = 0.005
# bytes that a process may hold while it waits for its next call; where another one is not forked, it is worth more
_KEPT_MEMORY = 32 << 20 if sys.platform == "linux" else 256 << 20
_LINUX_OOM_PREFERENCE = Path("/proc/self/oom_score_adj")
_STAGE_PROGRAM = """\
import sys
sys.path[:] = {path!r}
from {module} import run_started_process
run_started_process({server}, {preload!r}, {fds!r}, {code!r})
"""


def run_stage_process(server: int, control: Callable[[int, int], None], own_fds: list[int]) -> NoReturn:
    """Runs the requested body, then those of further calls, and exits with code 0, whether they returned or raised.

    The exit skips Python's finalization, so threads and atexit functions of a body cannot keep the process alive.
    """
    os.setsid()  # a group of its own, and no Ctrl-C from the terminal
    die_with_parent(control, server)
    adopt_orphans(control)
    with contextlib.suppress(OSError):  # out of memory, the kernel should kill a stage, not the pool or the server
        _LINUX_OOM_PREFERENCE.write_text("500")
    inherited = own_memory(os.getpid())
    *fds, calls_fd = own_fds
    with socket.socket(fileno=calls_fd) as calls:
        while fds:
            request_fd, answer_fd, log_fd, progress_fd = fds
            _write_to(log_fd)
            reporter.set(ProgressWriter(progress_fd))
            linger = 0.0  # seconds to wait for the next call
            try:
                with os.fdopen(request_fd, "rb") as file:
                    request = CallRequest.decode(file.read())
                result = _load(request)(request.argument)
                answer = Answer(result, None, bad_input=False, memory=own_memory(os.getpid())).encode()
                linger = request.linger
            except BaseException as error:  # noqa: BLE001 - a process boundary: the answer says what was raised
                answer = _failure(error).encode()
            _send(answer, answer_fd)
            os.close(progress_fd)
            fds = _next_call(calls, linger) if linger and _may_linger(inherited) else []
    os._exit(0)


def run_started_process(server: int, preload: list[str], own_fds: list[int], code: str) -> NoReturn:
    """The main program of a stage process that is not forked; its calls fail unless `code` is the server's."""
    _prepare_interpreter()
    _write_to(os.dup(own_fds[2]))  # the log
    for fd in own_fds:
        os.set_inheritable(fd, False)
    for module in preload:
        importlib.import_module(module)
    note_loaded(code)
    run_stage_process(server, process_control(), own_fds)


def _prepare_interpreter() -> None:
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):  # by lines, so that the log of a crashed stage is complete
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _send(answer: bytes, answer_fd: int) -> None:
    """Writes the answer once all of the log is written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed by the body
            stream.flush()
    with open(answer_fd, "wb") as file:
        file.write(answer)


def _write_to(log_fd: int) -> None:
    """Makes a descriptor stdout and stderr, and closes it."""
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(log_fd)


def _may_linger(inherited: int) -> bool:
    """Whether the calls have left no thread, no child and little memory in this process, which began with `inherited`.

    Where they have left more, lowering takes so long that a fork does not matter.
    """
    kept = own_memory(os.getpid()) - inherited
    return kept <= _KEPT_MEMORY and count_threads() == 1 and not children(os.getpid())


def _next_call(calls: socket.socket, linger: float) -> list[int]:
    """The far ends of the next call's channels; empty if none comes in time, or the pool has ended."""
    _write_to(os.open(os.devnull, os.O_WRONLY))  # the pool has the log by now
    calls.settimeout(linger)
    with contextlib.suppress(OSError):  # a timeout, too
        fds = _receive_fds(calls, CALL_FDS) or []
        if len(fds) == CALL_FDS:
            calls.sendall(Started(os.getpid(), own_memory(os.getpid())).encode())
            return fds
    return []


def _receive_fds(calls: socket.socket, count: int) -> list[int] | None:
    """The descriptors of one message, fewer if this process has run out of them; None if the other end is closed."""
    message, fds, _, _ = socket.recv_fds(calls, 1, count)
    for fd in fds:
        os.set_inheritable(fd, False)  # programs that a body starts must not inherit them
    return fds if message else None


def _failure(error: BaseException) -> Answer:
    """The answer to a call that has raised; its traceback, which begins in the body, is in the log."""
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    with contextlib.suppress(OSError, ValueError):  # the body closed stderr
        traceback.print_exception(error)
    return Answer(
        result=None,
        error=_one_message(error),
        bad_input=is_bad_input(error),
        memory=own_memory(os.getpid()),
        lost_object=isinstance(error, ObjectMissing | ObjectDamaged),
        user_code=from_user_code(error),
    )


def _load(request: CallRequest) -> Callable[[Any], Any]:
    if sys.path[: len(request.python_path)] != request.python_path:
        sys.path[:0] = request.python_path
    importlib.invalidate_caches()  # the server may have listed a folder before the module was written
    module, _, name = request.function.partition(":")
    function: Callable[[Any], Any] = operator.attrgetter(name)(importlib.import_module(module))
    return function


def _one_message(error: BaseException) -> str:
    try:
        message = whole_message(error)
    except Exception as unprintable:  # noqa: BLE001 - the body's own class
        message = f"{type(error).__name__}: (its message cannot be shown: {type(unprintable).__name__})"
    return message if len(message) <= _MESSAGE_LIMIT else f"{message[:_MESSAGE_LIMIT]} ..."


def serve(control_fd: int, parent: int, preload: list[str], listener_fd: int | None, *, forks: bool) -> None:
    """The main program of the server and of the processes that it forks, unless it starts them afresh.

    Returns, in the server, when the pool closes its end of the control socket. Pools of other processes of this machine
    get a control socket each when they connect to the listener; their calls are killed when they close it.

    If the pool dies during the warm-up, a signal kills the server. Afterwards that signal is off: the control socket
    ends too, which leaves time to kill the process groups of the calls.
    """
    process = process_control()
    die_with_parent(process, parent)
    adopt_orphans(process)
    _prepare_interpreter()
    if forks:
        gc.disable()  # imports create many objects and few cycles: collecting takes a third of their time
        for module in preload:
            importlib.import_module(module)
        _require_single_thread()
        gc.collect()
        gc.enable()
        gc.freeze()  # stage processes do not collect these objects, so their pages stay shared
    listener = None if listener_fd is None else socket.socket(fileno=listener_fd)
    for fd in filter(None, (control_fd, listener_fd)):
        os.set_inheritable(fd, False)
    pid = os.getpid()
    greeting = READY + note_loaded().encode()
    preloading = None if forks else preload
    with socket.socket(fileno=control_fd) as control, _Server(control, listener, preloading, greeting) as server:
        process(_PR_SET_PDEATHSIG, 0)
        control.sendall(greeting)
        fds = server.run()
    if os.getpid() != pid:
        try:
            run_stage_process(pid, process, fds)
        except BaseException:  # noqa: BLE001 - a process boundary
            traceback.print_exc()
        finally:
            os._exit(os.EX_SOFTWARE)


def _require_single_thread() -> None:
    """A fork copies only the calling thread: locks that other threads hold would stay locked for ever."""
    count = count_threads()
    if count != 1:
        names = ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        raise RuntimeError(
            f"the preload modules left {count - 1} more threads running ({names or 'none of them Python threads'}); "
            "a process cannot be forked safely"
        )


def count_threads() -> int:
    """Threads of this process, those that Python does not know included."""
    tasks = "/proc/self/task"
    return len(os.listdir(tasks)) if os.path.isdir(tasks) else threading.active_count()  # noqa: PTH112, PTH208 - plain counting


def _start_process(preload: list[str], own_fds: list[int]) -> int:
    program = _STAGE_PROGRAM.format(
        path=sys.path, module=__name__, server=os.getpid(), preload=preload, fds=own_fds, code=code_at_start()
    )
    for fd in own_fds:
        os.set_inheritable(fd, True)
    return os.posix_spawn(sys.executable, [sys.executable, "-c", program], os.environ)


@dataclass
class _Call:
    pid: int
    link: socket.socket
    control: socket.socket  # that it came by

    def kill(self) -> None:
        """Kills the process, which is not reaped yet, and its group, which it may not have created yet."""
        os.kill(self.pid, signal.SIGKILL)
        self.kill_group()

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS denies signals to a group of zombies
            os.killpg(self.pid, signal.SIGKILL)


class _Server:
    def __init__(
        self, control: socket.socket, listener: socket.socket | None, preload: list[str] | None, greeting: bytes
    ) -> None:
        """Forks processes, or starts each afresh, with the `preload` modules, if there are any."""
        self._preload = preload
        self._greeting = greeting
        self._control = control
        self._listener = listener
        self._controls = [control]  # the pool's, and those of other processes' pools
        self._calls: dict[int, _Call] = {}
        self._own_children = frozenset(children(os.getpid()))  # of the preload modules
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakeup_end = socket.socketpair()

    def __enter__(self) -> Self:
        self._wakeup.setblocking(False)
        self._wakeup_end.setblocking(False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the pool's process may have blocked some
        signal.set_wakeup_fd(self._wakeup_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
        signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        if self._listener:
            self._selector.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        for call in self._calls.values():
            call.kill()
        for pid in self._calls:
            os.waitpid(pid, 0)
        self._calls.clear()
        limit = time.monotonic() + _ORPHANS_LIMIT
        while self._end_orphans() and time.monotonic() < limit:
            time.sleep(_ORPHANS_PAUSE)
        if self._listener:  # the pool may have been killed
            with contextlib.suppress(OSError):
                path = Path(self._listener.getsockname())
                path.unlink()
                path.parent.rmdir()

    def run(self) -> list[int]:
        """Returns when the pool has ended; in each process that is forked, with the descriptors of its call."""
        while True:
            for key, _ in self._selector.select():
                if isinstance(control := key.fileobj, socket.socket) and control in self._controls:
                    fds: list[int] | None = None
                    with contextlib.suppress(ConnectionError):
                        fds = _receive_fds(control, PROCESS_FDS)
                    if fds is not None:
                        if own_fds := self._start(fds, control):
                            return own_fds
                    elif control is self._control:
                        return []
                    else:
                        self._leave(control)
                elif self._listener and key.fileobj is self._listener:
                    self._accept(self._listener)
                elif key.fileobj is self._wakeup:
                    with contextlib.suppress(BlockingIOError):
                        self._wakeup.recv(1 << 16)
                    self._reap()
                elif key.data in self._calls:  # nothing is ever sent on a link: the pool closed it
                    self._selector.unregister(key.fileobj)
                    self._calls[key.data].kill()

    def _accept(self, listener: socket.socket) -> None:
        """Takes calls of one more pool."""
        with contextlib.suppress(OSError):  # it has gone again
            control, _ = listener.accept()
            control.sendall(self._greeting)
            self._controls.append(control)
            self._selector.register(control, selectors.EVENT_READ)

    def _leave(self, control: socket.socket) -> None:
        """Ends the calls of a pool that is not this server's own. It hears no more of them."""
        self._controls.remove(control)
        self._selector.unregister(control)
        control.close()
        for call in self._calls.values():
            if call.control is control:
                self._unlink(call)
                call.kill()

    def _unlink(self, call: _Call) -> None:
        with contextlib.suppress(KeyError, ValueError):  # the pool closed it before, or it is closed here
            self._selector.unregister(call.link)
        call.link.close()

    def _start(self, fds: list[int], control: socket.socket) -> list[int]:
        """Starts a process for a call; in a fork, this object becomes empty, and what it is for is returned."""
        if len(fds) != PROCESS_FDS:  # this process has run out of descriptors: the pool sees the link end
            for fd in fds:
                os.close(fd)
            return []
        *own_fds, link_fd = fds
        link = socket.socket(fileno=link_fd)
        baseline = own_memory(os.getpid()) if self._preload is None else 0
        try:
            pid = os.fork() if self._preload is None else _start_process(self._preload, own_fds)
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            self._let_go(link)
            return own_fds
        for fd in own_fds:
            os.close(fd)
        with contextlib.suppress(OSError):  # the pool gave the call up: the selector will report it
            link.sendall(Started(pid, baseline).encode())
        if pid < 0:
            link.close()
        else:
            self._calls[pid] = _Call(pid, link, control)
            self._selector.register(link, selectors.EVENT_READ, pid)
        return []

    def _reap(self) -> None:
        for call in list(self._calls.values()):
            pid, status = os.waitpid(call.pid, os.WNOHANG)
            if pid == 0:
                continue
            call.kill_group()  # processes that the body left behind
            del self._calls[pid]
            with contextlib.suppress(OSError):  # the pool closed it before
                call.link.sendall(Ended(os.waitstatus_to_exitcode(status)).encode())
            self._unlink(call)
        self._end_orphans()

    def _end_orphans(self) -> bool:
        """Kills processes that ended calls left behind; returns whether there was any.

        Processes of running calls are not among the server's children: they stay with the stage process. Children of an
        orphan arrive when it has ended, with the signal that wakes the server for it.
        """
        orphans = children(os.getpid()) - self._calls.keys() - self._own_children
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)  # it is not reaped yet, so nobody else has its id
                os.waitpid(pid, os.WNOHANG)
        return bool(orphans)

    def _let_go(self, link: socket.socket) -> None:
        """Closes the server's sockets in a stage process, so that their other ends notice its end at once.

        The server's calls and its listener are none of this process's, whatever it does at its end.
        """
        shared = [link, *self._controls, self._wakeup, self._wakeup_end, *(call.link for call in self._calls.values())]
        shared += [self._listener] if self._listener else []
        self._calls, self._listener = {}, None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._selector.close()
        for end in shared:
            end.close()
