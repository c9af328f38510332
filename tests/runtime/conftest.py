"""Builds the runtime, once per session; and the programs that it runs, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_RUNTIME = _HERE.parents[1] / "runtime"


def _cmake(source: Path, build: Path, *options: str) -> Path:
    for command in (
        ["cmake", "-S", source, "-B", build, f"-DPython_EXECUTABLE={sys.executable}", *options],
        ["cmake", "--build", build, "--parallel", "1"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the library and of nfat_run, as they are shipped."""
    return _cmake(_RUNTIME, tmp_path_factory.mktemp("build"), "-DNFAT_BUILD_HOST=ON")


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs in native/, which stop at what AddressSanitizer or UndefinedBehaviorSanitizer report."""
    return _cmake(_HERE / "native", tmp_path_factory.mktemp("sanitized"), "-DNFAT_SANITIZE=ON")


@pytest.fixture(scope="session")
def python_path() -> Path:
    """Where the Python package of the runtime is imported from."""
    return _RUNTIME / "python"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs that programs/make.py makes."""
    folder = tmp_path_factory.mktemp("programs")
    done = subprocess.run(
        [sys.executable, _HERE / "programs" / "make.py", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


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
