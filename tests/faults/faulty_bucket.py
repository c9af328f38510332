"""Faults of a bucket that fsspec's `dir` file system stands for: what clients of eventually consistent ones see."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from fsspec.implementations.dirfs import DirFileSystem

FAULTS = ("stale listings", "slow calls", "doubled operations", "reordered operations")
_LAG = 20  # changes that listings may be behind, or an operation may come late
_SLOW = 0.03  # seconds at most

_real = {name: getattr(DirFileSystem, name) for name in ("find", "info", "cat_file", "pipe_file", "mv", "rm_file")}
_numbers = itertools.count()


@dataclass
class Bucket:
    """What happens to calls.

    Attributes:
        fault: one of `FAULTS`.
        rate: share of the calls that it happens to.
        changes: undo of each change in listings, the last one at the end: a path, and its entry before or None.
        late: operations that come after so many further changes.
    """

    fault: str
    rate: float
    rng: random.Random
    met: int = 0
    changes: list[tuple[str, Any]] = field(default_factory=list)
    late: list[tuple[int, Callable[[], object]]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock)

    def strikes(self, fault: str) -> bool:
        if fault != self.fault or self.rng.random() >= self.rate:
            return False
        self.met += 1
        return True

    def find(self, _name: str, fs: Any, path: str, *args: Any, **options: Any) -> Any:
        """A listing, perhaps one of before the last changes."""
        self._wait()
        with self.lock:
            found = _real["find"](fs, path, *args, **options)
            if self.strikes("stale listings") and isinstance(found, dict):
                for changed, before in reversed(self.changes[-self.rng.randrange(1, _LAG) :]):
                    if changed.startswith(path.rstrip("/") + "/"):
                        found.pop(changed, None) if before is None else found.update({changed: before})
            return found

    def read(self, name: str, fs: Any, path: str, *args: Any, **options: Any) -> Any:
        self._wait()
        return _real[name](fs, path, *args, **options)

    def change(self, name: str, fs: Any, *args: Any, **options: Any) -> Any:
        """An operation: done at once, later, or twice."""
        self._wait()
        with self.lock:
            if self.strikes("reordered operations") and name != "pipe_file":
                return self._delay(self._again(name, fs, args))
            again = self._again(name, fs, args) if self.strikes("doubled operations") else None
            paths = args[1:2] if name == "mv" else args[:1]
            before = [(path, _entry(fs, path)) for path in paths]
            done = _real[name](fs, *args, **options)
            self.changes += before
            if again:
                self._delay(again)
            self._deliver()
            return done

    def deliver_all(self) -> None:
        """Does all that is late."""
        with self.lock:
            late, self.late = self.late, []
            for _, operation in late:
                operation()

    def _delay(self, operation: Callable[[], object]) -> None:
        self.late.append((len(self.changes) + self.rng.randrange(1, _LAG), operation))

    def _deliver(self) -> None:
        due = [operation for when, operation in self.late if when <= len(self.changes)]
        self.late = [(when, operation) for when, operation in self.late if when > len(self.changes)]
        for operation in due:
            operation()

    def _wait(self) -> None:
        if self.strikes("slow calls"):
            time.sleep(self.rng.uniform(0, _SLOW))

    @staticmethod
    def _again(name: str, fs: Any, args: tuple[Any, ...]) -> Callable[[], None]:
        """The same operation once more, as it was asked for now; a move puts the content that is to be moved."""
        content = _real["cat_file"](fs, args[0]) if name == "mv" else None

        def operation() -> None:
            with contextlib.suppress(OSError):
                if content is None:
                    _real[name](fs, *args)
                else:
                    aside = f"{args[0]}-{next(_numbers)}"
                    _real["pipe_file"](fs, aside, content)
                    _real["mv"](fs, aside, args[1])
                    _real["rm_file"](fs, args[0])

        return operation


def _entry(fs: Any, path: str) -> Any:
    with contextlib.suppress(OSError):
        return _real["info"](fs, path)
    return None


@contextlib.contextmanager
def failing(bucket: Bucket) -> Iterator[None]:
    """Makes this process see such a bucket; at the end all is done that was asked for."""
    with contextlib.ExitStack() as stack:
        stack.callback(bucket.deliver_all)
        for name in ("info", "cat_file"):
            stack.enter_context(mock.patch.object(DirFileSystem, name, _method(bucket.read, name)))
        for name in ("pipe_file", "mv", "rm_file"):
            stack.enter_context(mock.patch.object(DirFileSystem, name, _method(bucket.change, name)))
        stack.enter_context(mock.patch.object(DirFileSystem, "find", _method(bucket.find, "find")))
        yield


def _method(action: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda fs, *args, **options: action(name, fs, *args, **options)
