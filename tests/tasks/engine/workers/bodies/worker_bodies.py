"""Functions that the tests run in worker processes. Found by `python_path`, never imported by the tests.

Each takes and gives one JSON value; what it does is its name.
"""

# ruff: noqa: T201 - named after what they do; printing is what is tested

import contextlib
import multiprocessing
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

from pteforge.errors import SourceError
from pteforge.tasks.engine.stage import reporter

length = len
leave = os._exit
leave_politely = sys.exit


def echo(argument):
    return argument


def blob(size):
    return "x" * size


def fail_on_input(_argument):
    raise SourceError("the builder returned nothing")


def fail(message):
    raise RuntimeError(message)


def fail_unprintably(_argument):
    class Odd(Exception):
        def __str__(self):
            raise ValueError

    raise Odd


def give_a_set(_argument):
    return {1, 2}


def die(signum):
    print("just before")
    os.kill(os.getpid(), signum)


def hang(_argument):
    print("hanging", flush=True)
    threading.Event().wait()


def announce_and_hang(path):
    Path(path).write_text(str(os.getpid()))
    threading.Event().wait()


def _spawn():
    """A grandchild that would outlive everything; gives its process id."""
    program = "import signal, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN); threading.Event().wait()"
    return subprocess.Popen([sys.executable, "-c", program]).pid


def leave_grandchildren(_argument):
    forked = os.fork()
    if forked == 0:
        threading.Event().wait()
    return [_spawn(), forked]


def announce_grandchild_and_hang(path):
    """Tells its own, the server's and its child's process id."""
    Path(path).write_text(f"{os.getpid()} {os.getppid()} {_spawn()}")
    threading.Event().wait()


def hold(size):
    """Touches every page, and holds them long enough to be seen."""
    held = bytearray(size)
    held[::4096] = b"x" * len(held[::4096])
    threading.Event().wait(0.2)
    return len(held)


def hog(_argument):
    held = []
    while True:
        held.append(bytearray(b"x") * (1 << 24))


def hog_in_grandchild(_argument):
    subprocess.run(
        [sys.executable, "-c", "held = []\nwhile True: held.append(bytearray(b'x') * (1 << 24))"], check=False
    )


def shared_with_forks(size):
    """Memory that forks share counts once."""
    held = bytearray(b"x") * size
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            threading.Event().wait(0.3)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return len(held)


def write_everywhere(_argument):
    print("print to stdout")
    print("print to stderr", file=sys.stderr)
    os.write(1, b"write to 1\n")
    os.write(2, "wri\u0167e to 2 \u26a1\n".encode())
    os.write(1, b"\xff\xfe\x00\x1b[31m binary\n")
    subprocess.run(["/bin/sh", "-c", "echo from a program"], check=True)


def write_much(lines):
    for number in range(lines):
        print(f"line {number}")


def write_much_and_fail(lines):
    write_much(lines)
    raise RuntimeError("after much")


def environment(_argument):
    return {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "cwd": str(Path.cwd()),
        "path": sys.path[:1],
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "threads": threading.active_count(),
        "descriptors": _descriptors(),
        "torch": "torch" in sys.modules,
        "random": random.random(),  # noqa: S311 - no secret
    }


def _descriptors():
    """What the open descriptors are, except the one that lists them."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return sorted(found)


def remember(value):
    """Leaves a trace in the process; gives those that were there before."""
    seen = sys.__dict__.setdefault("_pteforge_test", [])
    seen.append(value)
    return seen[:-1]


def keep(size):
    """Leaves so much memory in the process."""
    sys.__dict__["_pteforge_test_kept"] = bytearray(b"x") * size


def start_thread_that_never_ends(_argument):
    threading.Thread(target=threading.Event().wait).start()
    return "done"


def close_stdout(_argument):
    sys.stdout.close()
    sys.stderr.close()
    return "closed"


def announce_and_wait(path):
    """Says that it has begun, then returns what it reads."""
    Path(path).write_text("begun")
    return Path(path).read_text()


def start_flooding_daemon(_argument):
    return subprocess.Popen(["yes", "flood"], start_new_session=True).pid


def _start_daemon(path, size):
    """Forks twice and leaves the session, as daemons do; returns when the daemon holds so much memory.

    It tells its process id, that of a program that it has started, the stage process's and the server's.
    """
    above = f"{os.getpid()} {os.getppid()}"
    told, tell = os.pipe()
    if child := os.fork():
        os.close(tell)
        os.waitpid(child, 0)
        os.read(told, 1)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    Path(path).write_text(f"{os.getpid()} {_spawn()} {above}")
    held = bytearray(b"x") * size
    os.write(tell, b"x")
    threading.Event().wait()
    os._exit(len(held))


def leave_daemon(argument):
    """Returns when the daemon's memory has been seen."""
    _start_daemon(*argument)
    threading.Event().wait(0.2)


def hang_beside_daemon(argument):
    _start_daemon(*argument)
    threading.Event().wait()


def _square(number):
    return number * number


def square_in_processes(numbers):
    """In a pool of each way to start processes."""
    found = {}
    for way in ("fork", "forkserver", "spawn"):
        with multiprocessing.get_context(way).Pool(2) as pool:
            found[way] = pool.map(_square, numbers)
    return found


def close_all_descriptors(_argument):
    os.closerange(3, 1000)


def count_samples(argument):
    """Tells of the first sample, waits for what is written into the pipe, then tells of the others."""
    path, total = argument
    progressed = reporter.get()
    progressed(1, total)
    answer = Path(path).read_text()
    for done in (2, 3):
        progressed(done, total)
    return answer
