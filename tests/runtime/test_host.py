"""Fat programs in a plain C++ program."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test builds
    # torchao imports libraries that this torch does not have, when torch.load finds it.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _arguments(programs: Path, name: str, folder: Path, method: str = "forward", call: int = 0) -> list[str | Path]:
    """The program, a method and the inputs of one of its calls."""
    import torch

    arguments = []
    for index, tensor in enumerate(torch.load(programs / f"{name}.calls.pt")[method][call]):
        path = folder / f"{index}.bin"
        path.write_bytes(tensor.numpy().tobytes())
        arguments.append(f"{'x'.join(map(str, tensor.shape))}:{path}")
    return [programs / f"{name}.pte", method, *arguments]


def _run(build: Path, arguments: Sequence[str | Path], *options: str) -> tuple[int, bytes, str]:
    """Exit code, outputs and messages."""
    done = subprocess.run([build / "nfat_run", *options, *arguments], capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize("name", ["v1", "v2", "v2-damaged-first", "v2-dynamic", "v2-aliases"])
def test_outputs(build: Path, programs: Path, outcomes: Mapping[str, object], tmp_path: Path, name: str) -> None:
    """A C++ program that links the library gets bit for bit what Python gets."""
    import torch

    code, outputs, messages = _run(build, _arguments(programs, name, tmp_path))
    assert code == 0, messages
    of_python = b"".join(each.numpy().tobytes() for each in torch.load(programs / f"{name}.outputs.pt"))
    assert outcomes[name].error == ""  # type: ignore[attr-defined]  # Outcome of conftest.py
    assert len(outputs) > 0
    assert outputs == of_python[: len(outputs)]
    assert ": chosen: " in messages


def test_nothing_fits(build: Path, programs: Path, tmp_path: Path) -> None:
    """Where no payload can run, the C++ program gets an error and a line for each payload."""
    code, outputs, messages = _run(build, _arguments(programs, "v2-none-fits", tmp_path))
    assert (code, outputs) == (1, b"")
    assert "mlx: passed over: it needs MLXBackend, which is not registered in this runtime\n" in messages
    assert "Error::DelegateInvalidCompatibility" in messages


@pytest.mark.usefixtures("outcomes")
def test_every_size(build: Path, programs: Path, tmp_path: Path) -> None:
    """With a dynamic batch, every size gives what Python gives."""
    import torch

    outputs = torch.load(programs / "v2-dynamic.outputs.pt")
    assert len({output.shape for output in outputs}) > 2
    for call, expected in enumerate(outputs):
        code, found, messages = _run(build, _arguments(programs, "v2-dynamic", tmp_path, call=call))
        assert (code, found) == (0, expected.numpy().tobytes()), messages


@pytest.mark.usefixtures("outcomes")
def test_every_method(build: Path, programs: Path, tmp_path: Path) -> None:
    """Each method of a program gives what Python gives for it."""
    import torch

    outputs = torch.load(programs / "v2-two-methods.outputs.pt")
    for method, expected in zip(("forward", "encode"), outputs, strict=True):
        code, found, messages = _run(build, _arguments(programs, "v2-two-methods", tmp_path, method))
        assert (code, found) == (0, expected.numpy().tobytes()), messages


def test_state(build: Path, programs: Path, tmp_path: Path) -> None:
    """State goes on from call to call, and every process starts anew."""
    import torch

    for _ in range(2):
        code, found, messages = _run(build, _arguments(programs, "v2-state", tmp_path), "--repeat", "3")
        assert code == 0, messages
        assert found == torch.tensor([[2.0] * 4, [4.0] * 4, [6.0] * 4]).numpy().tobytes()


@pytest.mark.parametrize("name", ["v1", "v2", "v2-state", "v2-aliases", "large"])
def test_threads(build: Path, sanitized: Path, programs: Path, tmp_path: Path, name: str) -> None:
    """Instances that threads load and call at the same time do not touch each other, their state included."""
    arguments = _arguments(programs, name, tmp_path)
    _, alone, _ = _run(build, arguments, "--repeat", "20")
    done = subprocess.run([sanitized / "run_in_threads", "4", "20", *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert len(alone) > 0
    assert done.stdout == alone


@pytest.mark.parametrize(
    ("name", "level", "chosen"),
    [
        ("large", "all", "xnnpack"),
        ("large-weights-damaged", "all", ""),
        ("large-weights-damaged", "parsed", "xnnpack"),
        ("large-parsed-damaged", "parsed", "portable"),
        ("large-parsed-damaged", "all", "portable"),
        ("v2-damaged-first", "all", "portable"),
        ("v2-no-parts-digest-damaged-first", "parsed", "portable"),
        ("v2-no-parts-digest", "all", "xnnpack"),
        ("v2", "none", "xnnpack"),
    ],
)
def test_levels_of_verification(
    build: Path, programs: Path, tmp_path: Path, name: str, level: str, chosen: str
) -> None:
    """The load option says how much is verified: with `all`, damaged weights are found; what is parsed is always."""
    code, _, messages = _run(build, _arguments(programs, name, tmp_path), "--verify", level)
    assert [line.partition(":")[0] for line in messages.splitlines() if ": chosen: " in line] == (
        [chosen] * bool(chosen)
    )
    assert code == (0 if chosen else 1), messages
    assert chosen or messages.count("is damaged: its blob ") >= 2


def test_unknown_level(build: Path, programs: Path, tmp_path: Path) -> None:
    """A level that does not exist is an error, and nothing is loaded."""
    code, outputs, messages = _run(build, _arguments(programs, "v2", tmp_path), "--verify", "most")
    assert (code, outputs) == (1, b"")
    assert "verify_digests is one of none, parsed, all" in messages


@pytest.mark.parametrize("level", ["none", "parsed", "all"])
def test_bench(build: Path, programs: Path, tmp_path: Path, level: str) -> None:
    """The host says what loading and each call cost."""
    arguments = _arguments(programs, "large", tmp_path)
    code, outputs, messages = _run(build, arguments, "--bench", "--repeat", "7", "--verify", level)
    assert code == 0, messages
    found = json.loads(outputs)
    assert 0 < found["load"] < 60
    assert len(found["calls"]) == 7
    assert min(found["resident_loaded"], found["resident_called"]) > found["resident_before"] > 0
