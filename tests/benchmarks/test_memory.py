"""The benchmark of memory, on the small model of its zoo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "memory.py"


def test_every_stage_has_a_figure(tmp_path):
    """Each stage that runs in a worker has a peak, the weights are counted, and the command succeeds."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, _BENCHMARK, "--model", "tiny", "--json"],
        env={**os.environ, "PATH": path, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["weights"] == 4 * (2 * 256 * 64 + 2 * (3 * 64 * 64 + 3 * 64 * 256 + 2 * 64) + 64)
    in_workers = {"export", "export/decode", "edge/prefill", "partition/decode", "preprocess", "compile", "verify"}
    assert all(figures["stages"][stage] > 0 for stage in in_workers)
    assert figures["flow"] > 50 << 20
    assert not list(tmp_path.glob("pteforge-memory-*"))
