"""The comparison of quantized files with those of ExecuTorch's own recipes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "quantization.py"

RECIPES = ("xnnpack-int8-static", "xnnpack-int8da-int4w-per-channel")


def test_files_are_as_exact_as_those_of_executorch():
    """Static, and dynamic in int4: for each output and input, SQNR is within 1 dB of `executorch.export`."""
    command = [sys.executable, _BENCHMARK, "--json", "--model", "resnet8", "--recipe", ",".join(RECIPES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pairs = {pair["recipe"]: pair for pair in json.loads(done.stdout)}
    assert set(pairs) == set(RECIPES)
    for pair in pairs.values():
        assert abs(pair["difference"]) <= 1
        assert pair["largest_difference"] <= 1
        assert len(pair["ours"]["sqnr_db"]) == 3  # the example and two random inputs
        assert all(10 < ratio < 60 for ratio in pair["ours"]["sqnr_db"])
        assert 0.9 < pair["size_ratio"] < 1.1
