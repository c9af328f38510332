"""Builds the runtime with sanitizers, once per session; and the programs that it runs, in a process of their own."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def sanitized(cmake: Callable[..., Path], made_once: Callable[..., Path]) -> Path:
    """Folder of the programs in native/, which stop at what AddressSanitizer or UndefinedBehaviorSanitizer report."""
    return made_once("sanitized", lambda folder: cmake(_HERE / "native", folder, "-DNFAT_SANITIZE=ON"))


@pytest.fixture(scope="session")
def programs(made_once: Callable[..., Path]) -> Path:
    """Folder of the programs that programs/make.py makes."""

    def make(folder: Path) -> None:
        command = [sys.executable, _HERE / "programs" / "make.py", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return made_once("programs", make)


@dataclass(frozen=True)
class Outcome:
    """What became of a program in ExecuTorch's Python runtime.

    Attributes:
        error: what loading or running it raised; empty if nothing did.
        report: what the backend says about its payloads, one line each.
        equal: whether its outputs equal those of the payload that it should choose, bit for bit.
    """

    error: str
    report: tuple[str, ...]
    equal: bool

    @property
    def chosen(self) -> str:
        """Name of the payload that runs; empty if there is none."""
        return next((line.partition(":")[0] for line in self.report if ": chosen: " in line), "")


@pytest.fixture(scope="session")
def outcomes(build: Path, programs: Path, python_path: Path) -> Mapping[str, Outcome]:
    """What programs/run.py found, by name of the program. One process runs them all: importing takes longer."""
    done = subprocess.run(
        [sys.executable, _HERE / "programs" / "run.py", build, programs],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(python_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((programs / "outcomes.json").read_text())
    return {name: Outcome(each["error"], tuple(each["report"]), each["equal"]) for name, each in found.items()}


@pytest.fixture
def mutations() -> Callable[[bytes, int, int], list[bytes]]:
    """Gives a container, and so many changed ones, most of them changed within the first so many bytes."""
    return lambda sound, table, count: list(_mutations(sound, table, count))


_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 16, 24, 63, 64, 65, 255, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF)


def _mutations(sound: bytes, table: int, count: int) -> Iterator[bytes]:
    """The container itself, then ones with some things changed, most of them within the first `table` bytes."""
    yield sound
    chance = random.Random(len(sound))  # noqa: S311  # the same mutations each time
    for _ in range(count):
        changed = bytearray(sound)
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            at = chance.randrange(min(table, len(changed)) or 1)
            kind = chance.randrange(8)
            if kind < 2:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            elif kind < 4:
                at -= at % 4
                changed[at : at + 4] = struct.pack(
                    "<I", chance.choice((*_NUMBERS, len(changed), chance.randrange(999)))
                )
            elif kind < 5:
                at -= at % 4
                changed[at : at + 8] = struct.pack(
                    "<Q", chance.choice((*_NUMBERS, 2**48, 2**63, 2**64 - 16, 2**64 - 1))
                )
            elif kind < 6:
                number = int.from_bytes(changed[at : at + 2], "little") + chance.choice((-4, -2, -1, 1, 2, 4))
                changed[at : at + 2] = (number % 65536).to_bytes(2, "little")
            elif kind < 7:
                del changed[chance.randrange(len(changed)) if changed else 0 :]
            else:
                other = chance.randrange(len(changed) or 1)
                changed[at : at + 8] = changed[other : other + 8]
        yield bytes(changed)


@pytest.fixture
def opened(sanitized: Path, tmp_path: Path) -> Callable[[Sequence[bytes], Mapping[str, bytes]], list[str]]:
    """Gives what native/open_containers says of containers with named data; what a sanitizer reports fails the test."""

    def run(containers: Sequence[bytes], named_data: Mapping[str, bytes]) -> list[str]:
        (tmp_path / "containers").write_bytes(b"".join(struct.pack("<Q", len(each)) + each for each in containers))
        (tmp_path / "blobs").write_bytes(
            b"".join(struct.pack("<Q", len(blob)) + key.encode() + blob for key, blob in named_data.items())
        )
        command = [sanitized / "open_containers", tmp_path / "containers", tmp_path / "blobs"]
        # Memory that cannot be had is an error that the library has to deal with, as outside of sanitizers.
        environment = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=1024"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace", env=environment)
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout.splitlines()

    return run
