"""ExecuTorch's own operator tests, through pteforge and through its testers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "upstream_suite.py"


def test_both_sides_make_two_operators(tmp_path):
    """Two cases each of two operators are run and right on both sides, and a second run has nothing to do."""
    command = [sys.executable, _BENCHMARK, "--only", "add,conv2d", "--cases", "2", "--flows", "xnnpack-fp32"]
    outputs = []
    for _ in range(2):
        done = subprocess.run([*command, "--folder", tmp_path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    for side in ("ours", "direct"):
        assert [*json.loads((tmp_path / f"xnnpack-fp32, {side}.json").read_text()).values()] == [""] * 4
    assert all("| xnnpack-fp32 | 4 | 0 | 4 | 0 | 0 | 0 |" in output for output in outputs)
    assert "right\n" in outputs[0]
    assert ": right" not in outputs[1]


def test_nothing_to_quantize_is_final(tmp_path):
    """A case in which ours finds nothing to quantize is counted as that, not run again, and not on the other side."""
    message = "StageFailed: the quantizer of xnnpack finds no operator in the program that it could quantize"
    case = "abs/test_abs_dtype-torch.float32/0"
    (tmp_path / "xnnpack-int8-dynamic, ours.json").write_text(json.dumps({case: message}))
    selected = ["--only", "abs", "--cases", "1", "--flows", "xnnpack-int8-dynamic", "--retry"]
    command = [sys.executable, _BENCHMARK, *selected, "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| xnnpack-int8-dynamic | 1 | 1 | 0 | 0 | 0 | 0 |" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["xnnpack-int8-dynamic, ours.json"]
