"""Builds the runtime with sanitizers, makes the programs that it runs, and runs them in processes of their own."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def run_python(python_path) -> Callable[..., str]:
    """Runs Python with pteforge_nfat on its path and returns what it prints."""
    paths = [str(python_path), *filter(None, [os.environ.get("PYTHONPATH")])]

    def run(*arguments: str | Path) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def sanitized(cmake, made_once) -> Path:
    """Folder of the programs in native/, which stop at what AddressSanitizer or UndefinedBehaviorSanitizer report."""
    return made_once("sanitized", lambda folder: cmake(_HERE / "native", folder, "-DNFAT_SANITIZE=ON"))


@pytest.fixture(scope="session")
def programs(made_once, run_python) -> Path:
    """Folder of the programs that programs/make.py makes."""
    return made_once("programs", lambda folder: run_python(_HERE / "programs" / "make.py", folder))


@dataclass(frozen=True)
class Outcome:
    """What became of a program in ExecuTorch's Python runtime.

    Attributes:
        error: what loading or running it raised; empty if nothing did.
        report: what the backend says about its payloads, one line each.
        equal: whether its outputs equal those of the payload that it should choose, bit for bit.
    """

    error: str
    report: Sequence[str]
    equal: bool

    @property
    def chosen(self) -> str:
        """Name of the payload that runs; empty if there is none."""
        return next((line.partition(":")[0] for line in self.report if ": chosen: " in line), "")


@pytest.fixture(scope="session")
def run_all(build, run_python) -> Callable[[Path], Mapping[str, Outcome]]:
    """Runs all programs of a folder with the library, in one process; returns the outcomes by program."""

    def run(folder: Path) -> Mapping[str, Outcome]:
        run_python(_HERE / "programs" / "run.py", build, folder)
        found = json.loads((folder / "outcomes.json").read_text())
        return {name: Outcome(**outcome) for name, outcome in found.items()}

    return run


@pytest.fixture(scope="session")
def outcomes(run_all, programs) -> Mapping[str, Outcome]:
    """What became of the programs of programs/make.py."""
    return run_all(programs)


def _bytes(tensor) -> bytes:
    """The tensor's data, also of types that numpy does not have."""
    import torch

    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.fixture
def host_arguments(tmp_path) -> Callable[..., list[str | Path]]:
    """Arguments for nfat_run: a program of a folder, a method and the inputs of one of its calls."""

    def arguments(folder: Path, name: str, method: str = "forward", call: int = 0) -> list[str | Path]:
        import torch

        inputs = []
        for index, tensor in enumerate(torch.load(folder / f"{name}.calls.pt")[method][call]):
            path = tmp_path / f"{index}.bin"
            path.write_bytes(_bytes(tensor))
            inputs.append(f"{'x'.join(map(str, tensor.shape))}:{path}")
        return [folder / f"{name}.pte", method, *inputs]

    return arguments


@pytest.fixture
def run_host(build) -> Callable[..., tuple[int, bytes, str]]:
    """Runs nfat_run; returns exit code, outputs and messages."""

    def run(*arguments: str | Path) -> tuple[int, bytes, str]:
        done = subprocess.run([build / "nfat_run", *arguments], capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr.decode()

    return run


@pytest.fixture
def check_host(run_host, host_arguments) -> Callable[[Path, str], None]:
    """Checks that nfat_run, in a process for each call, outputs bit for bit what `run_all` got."""

    def check(folder: Path, name: str) -> None:
        import torch

        outputs = b""
        for method, calls in torch.load(folder / f"{name}.calls.pt").items():
            for call in range(len(calls)):
                code, found, messages = run_host(*host_arguments(folder, name, method, call))
                assert code == 0, (name, messages)
                assert ": chosen: " in messages
                outputs += found
        assert outputs == b"".join(map(_bytes, torch.load(folder / f"{name}.outputs.pt"))), name
        assert outputs

    return check


@pytest.fixture
def run_sanitized(sanitized, tmp_path) -> Callable[..., list[str]]:
    """Runs a program of native/ on stored containers and their named data; returns the lines that it prints.

    The test fails if a sanitizer reports anything.
    """

    def run(program: str, containers: bytes, named_data: Mapping[str, bytes]) -> list[str]:
        (tmp_path / "containers").write_bytes(containers)
        blobs = (struct.pack("<Q", len(blob)) + key.encode() + bytes(blob) for key, blob in named_data.items())
        (tmp_path / "blobs").write_bytes(b"".join(blobs))
        # A failed allocation is an error that the library handles, as it does without sanitizers.
        environment = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=1024"}
        command = [sanitized / program, tmp_path / "containers", tmp_path / "blobs"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace", env=environment)
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout.splitlines()

    return run


@pytest.fixture
def opened(run_sanitized) -> Callable[[Sequence[bytes], Mapping[str, bytes]], list[str]]:
    """What native/open_containers says of containers with named data."""

    def opened(containers: Sequence[bytes], named_data: Mapping[str, bytes]) -> list[str]:
        stored = b"".join(struct.pack("<Q", len(container)) + container for container in containers)
        return run_sanitized("open_containers", stored, named_data)

    return opened
