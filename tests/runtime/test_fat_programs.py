"""Fat programs in ExecuTorch's Python runtime, with the library as it is shipped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds


class Outcome(Protocol):
    """As in conftest.py."""

    error: str
    report: tuple[str, ...]
    equal: bool
    chosen: str


Outcomes = Mapping[str, Outcome]

_PROGRAMS = Path(__file__).with_name("programs")


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("v1", "XnnpackBackend"),
        ("v1-garbage-first", "portable"),
        ("v1-dynamic-portable", "portable"),
        ("v2", "xnnpack"),
        ("v2-mlx-first", "xnnpack"),
        ("v2-mislabelled-first", "portable"),
        ("v2-damaged-first", "portable"),
        ("v2-nested", "xnnpack"),
        ("v2-nested-and-says-so", "xnnpack"),
        ("v2-no-parts-digest", "xnnpack"),
        ("v2-no-parts-digest-damaged-first", "portable"),
        ("v2-method-missing-first", "portable"),
        ("large", "xnnpack"),
        ("large-parsed-damaged", "portable"),
        ("v2-planned", "xnnpack"),
        ("v2-dynamic", "xnnpack"),
        ("v2-aliases", "xnnpack"),
        ("v2-two-methods", "xnnpack"),
        ("v2-state", "xnnpack"),
    ],
)
def test_chosen_payload(outcomes: Outcomes, name: str, chosen: str) -> None:
    """The first payload that can run is chosen, and gives bit for bit what it gives when it is run directly."""
    assert (outcomes[name].error, outcomes[name].chosen) == ("", chosen)
    assert outcomes[name].equal


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("v1-garbage-first", "XnnpackBackend: passed over: it is not a program that this runtime can load"),
        ("v2-mlx-first", "mlx: passed over: it needs MLXBackend, which is not registered in this runtime"),
        ("v2-mislabelled-first", "vulkan: passed over: it needs VulkanBackend, which is not registered"),
        ("v2-damaged-first", "xnnpack: passed over: it is damaged: what the container says of it has another SHA-256"),
        ("v2-no-parts-digest-damaged-first", "xnnpack: passed over: it is damaged: its SHA-256 is another one"),
        ("large-parsed-damaged", "xnnpack: passed over: it is damaged: its blob "),
        ("v2-nested", "fat: passed over: it is a fat program itself, and those do not nest"),
        ("v2-nested-and-says-so", "fat: passed over: it is a fat program itself, and those do not nest"),
        ("v2-method-missing-first", "encoder: passed over: it has no method forward"),
    ],
)
def test_reason_for_passing_over(outcomes: Outcomes, name: str, reason: str) -> None:
    """The report says of a payload why it was passed over, before it says which one was chosen."""
    assert len(outcomes[name].report) == 2
    assert outcomes[name].report[0].startswith(reason)


@pytest.mark.parametrize(
    ("name", "payloads"),
    [
        ("v1-none-fits", {"MLXBackend": "needs MLXBackend", "HexagonBackend": "needs HexagonBackend"}),
        ("v2-none-fits", {"mlx": "needs MLXBackend"}),
        ("v2-blobs-missing", {"xnnpack": "is missing", "portable": "is missing"}),
        ("v2-blobs-short", {"xnnpack": "bytes instead of", "portable": "bytes instead of"}),
    ],
)
def test_nothing_fits(outcomes: Outcomes, name: str, payloads: Mapping[str, str]) -> None:
    """Where no payload can run, loading fails as incompatible, and the report lists each payload and why."""
    outcome = outcomes[name]
    assert "0x:30" in outcome.error
    assert [line.partition(":")[0] for line in outcome.report] == list(payloads)
    for line, reason in zip(outcome.report, payloads.values(), strict=True):
        assert reason in line


def test_damaged_container(outcomes: Outcomes) -> None:
    """A container that is cut short is refused as an invalid program, saying so."""
    outcome = outcomes["v2-cut-short"]
    assert "0x:23" in outcome.error
    assert len(outcome.report) == 1
    assert outcome.report[0].startswith("container refused: the container has ")


def test_other_outputs(outcomes: Outcomes) -> None:
    """A payload whose outputs are smaller than the program's loads, and calling it is an error and no wrong result."""
    outcome = outcomes["v2-other-outputs"]
    assert outcome.chosen == "xnnpack"
    assert outcome.error.startswith("method->execute() failed")


@pytest.mark.parametrize("name", ["v2", "v2-damaged-first", "v2-dynamic", "v2-state"])
def test_in_place(outcomes: Outcomes, name: str) -> None:
    """What the packer laid out for it is used where it is: nothing of a payload is copied."""
    assert outcomes[name].report[-1].endswith(" bytes in place, 0 copied")


@pytest.mark.parametrize("name", ["v2", "v2-state", "v1"])
def test_instances_in_threads(build: Path, programs: Path, python_path: Path, name: str) -> None:
    """Instances of a program that several threads load and call do not touch each other, their state included."""
    done = subprocess.run(
        [sys.executable, _PROGRAMS / "instances.py", build, programs / f"{name}.pte", programs / f"{name}.calls.pt"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(python_path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 of 4 equal\n"
