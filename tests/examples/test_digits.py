"""The digits example holds what it promises: small files that read as well as eager does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pteforge
import pytest
from pteforge.configs import load_zoo

ROOT = Path(pteforge.__file__).parent


def test_every_recipe_is_gated():
    """The zoo loads, and none of its files can be made without being scored against eager."""
    zoo = load_zoo(ROOT / "examples" / "digits" / "digits.yaml").zoo
    gates = {recipe: zoo.accuracy_gate("digits", recipe) for recipe in zoo.recipes_of("digits")}
    assert list(gates) == ["fp32", "int8-static", "int8-dynamic", "8da4w"]
    assert gates["int8-static"].max_drop == 0.005
    for recipe, gate in gates.items():
        assert gate.max_drop is not None
        assert [each.target for each in zoo.recipes[recipe].specializations] == ["xnnpack", "portable"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_accuracy_and_size():
    """Int8 loses half a point at most, 8da4w one, in each payload; XNNPACK's int8 payload is 0.35 of fp32's weights."""
    script = ROOT / "benchmarks" / "digits.py"
    done = subprocess.run([sys.executable, script, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    digits = json.loads(done.stdout)
    payloads = {(each["recipe"], each["payload"]): each for each in digits["payloads"]}
    assert len(payloads) == 8
    assert digits["eager"] > 0.95
    for recipe, most in (("fp32", 0), ("int8-static", 0.005), ("int8-dynamic", 0.005), ("8da4w", 0.01)):
        for payload in ("xnnpack", "portable"):
            assert payloads[recipe, payload]["drop"] <= most
    assert payloads["int8-static", "xnnpack"]["size"] <= 0.35 * digits["weights"]
    assert payloads["int8-dynamic", "xnnpack"]["ratio"] < 0.5
    assert payloads["8da4w", "xnnpack"]["ratio"] < payloads["int8-dynamic", "xnnpack"]["ratio"]
