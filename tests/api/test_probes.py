"""The smallest cases of faults of torch and ExecuTorch."""

import os
import sys
from pathlib import Path

import pytest
from pteforge.api.probes import CASES, in_fork
from pteforge.tasks.lowering import toolchain
from pteforge.tasks.lowering.toolchain import probe, toolchain_of


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_each_patch_is_needed(monkeypatch, tmp_path):
    """With it, its case is made; without, it is refused, or another file. What came of it is remembered."""
    described, python = toolchain_of(), Path(sys.executable)
    probed = probe(described, python, tmp_path)
    assert {patch.name: patch.probe for patch in probed.patches if patch.probe} == dict.fromkeys(CASES, "needed")
    assert probed.well
    monkeypatch.setattr(toolchain, "_asked", None)  # which cannot be called
    assert probe(described, python, tmp_path) == probed


def test_a_process_that_dies():
    """What a function returns there is JSON; a process that ends before has none."""
    assert in_fork({"PTEFORGE_PROBED": "1"}, lambda: ["one", {"two": 3}]) == ["one", {"two": 3}]
    assert in_fork({}, lambda: os._exit(3)) is None
