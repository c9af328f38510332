"""Fat programs in a plain C++ program."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test builds
    # torchao imports libraries that this torch does not have, when torch.load finds it.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _run(build: Path, programs: Path, name: str, folder: Path) -> tuple[int, bytes, str]:
    """Exit code, outputs and messages of the first call of `forward`."""
    import torch

    arguments = []
    for index, tensor in enumerate(torch.load(programs / f"{name}.calls.pt")["forward"][0]):
        path = folder / f"{index}.bin"
        path.write_bytes(tensor.numpy().tobytes())
        arguments.append(f"{'x'.join(map(str, tensor.shape))}:{path}")
    program = [build / "nfat_run", programs / f"{name}.pte", "forward", *arguments]
    done = subprocess.run(program, capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize("name", ["v1", "v2", "v2-damaged-first", "v2-dynamic", "v2-aliases"])
def test_outputs(build: Path, programs: Path, outcomes: Mapping[str, object], tmp_path: Path, name: str) -> None:
    """A C++ program that links the library gets bit for bit what Python gets."""
    import torch

    code, outputs, messages = _run(build, programs, name, tmp_path)
    assert code == 0, messages
    of_python = b"".join(each.numpy().tobytes() for each in torch.load(programs / f"{name}.outputs.pt"))
    assert outcomes[name].error == ""  # type: ignore[attr-defined]  # Outcome of conftest.py
    assert len(outputs) > 0
    assert outputs == of_python[: len(outputs)]
    assert ": chosen: " in messages


def test_nothing_fits(build: Path, programs: Path, tmp_path: Path) -> None:
    """Where no payload can run, the C++ program gets an error and a line for each payload."""
    code, outputs, messages = _run(build, programs, "v2-none-fits", tmp_path)
    assert (code, outputs) == (1, b"")
    assert "mlx: passed over: it needs MLXBackend, which is not registered in this runtime\n" in messages
    assert "Error::DelegateInvalidCompatibility" in messages
