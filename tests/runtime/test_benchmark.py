"""The benchmark of fat files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "fat_runtime.py"


def test_figures(build: Path) -> None:
    """One run has figures for every model, and memory, which time does not change, is within 5 % of the payload's."""
    command = [sys.executable, "-W", "ignore", _BENCHMARK, "--repeat", "1", "--json", "--host", build / "nfat_run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    costs = json.loads(done.stdout)
    assert [(cost["model"], cost["payload"]) for cost in costs] == [
        ("21 MB", "xnnpack"),
        ("21 MB", "portable"),
        ("x + x", "xnnpack"),
        ("x + x", "portable"),
    ]
    assert costs[0]["payload_bytes"] > 20 << 20
    for cost in costs:
        assert cost["loaded_ratio"] < 1.05
        assert cost["called_ratio"] < 1.05
        assert cost["loaded_ratio_all"] < 1.05
        assert cost["verifying_all"] < 60
        assert cost["bare"]["load"] > 0
