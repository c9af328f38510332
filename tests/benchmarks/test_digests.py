"""The benchmark of digests, on the starter zoo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "digests.py"


def test_digests_cost_little():
    """Digesting all that the stages of the starter zoo read takes less than 2 % of the CPU time."""
    done = subprocess.run(
        [sys.executable, _BENCHMARK, "--repeat", "1", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    (run,) = figures["runs"]
    assert run["objects"] > 500
    assert 0 < figures["share"] < 0.02
