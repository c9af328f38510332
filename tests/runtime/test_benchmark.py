"""The benchmark of fat files."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]  # the first test builds

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "fat_runtime.py"


def test_figures(run_python, build):
    """One run measures every model, and a fat file takes at most 5 % more memory than its payload."""
    output = run_python("-W", "ignore", _BENCHMARK, "--repeat", "1", "--json", "--host", build / "nfat_run")
    costs = json.loads(output)
    assert [(cost["model"], cost["payload"]) for cost in costs] == [
        ("21 MB", "xnnpack"),
        ("21 MB", "portable"),
        ("ResNet-18", "xnnpack"),
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
