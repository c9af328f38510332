"""The benchmark of memory, on its small model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "memory.py"


def test_every_stage_has_a_figure(tmp_path):
    """Each stage that runs in a worker has a peak, the weights are counted, and the command succeeds."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, _BENCHMARK, "--model", "tiny", "--recipe", "xnnpack-fp32", "--recipe", "fat", "--json"],
        env={**os.environ, "PATH": path, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["weights"] == 4 * (2 * 32000 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64)
    in_workers = {"export", "edge/forward", "partition/forward", "preprocess", "compile", "verify"}
    assert all(figures["stages"]["xnnpack-fp32"][stage] > 0 for stage in in_workers)
    assert figures["stages"]["fat"]["pack"] > 0
    assert figures["command"] > 50 << 20
    assert not list(tmp_path.glob("pteforge-memory-*"))
