"""The smallest cases of faults of torch and ExecuTorch."""

import json
import logging
import os
import sys
from pathlib import Path

import pytest
from pteforge.api import probes
from pteforge.api.probes import CASES, VULKAN, in_fork
from pteforge.tasks.lowering import toolchain
from pteforge.tasks.lowering.toolchain import probe, toolchain_of
from pteforge.tasks.upstream.patches import LIBRARY, NOT_TRIED


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_each_patch_and_limit_is_needed(monkeypatch, tmp_path):
    """With it, its case is made; without, it is refused, or another file. What came of it is remembered.

    Limits need a driver to run on.
    """
    described, python = toolchain_of(), Path(sys.executable)
    probed = probe(described, python, tmp_path)
    of_limits = "needed" if os.environ.get(LIBRARY) else NOT_TRIED
    expected = {name: of_limits if recipe is VULKAN else "needed" for name, (_, recipe) in CASES.items()}
    states = (*probed.patches, *probed.limits)
    assert {state.name: state.probe for state in states if state.probe} == expected
    assert probed.well
    monkeypatch.setattr(toolchain, "_asked", None)  # which cannot be called
    assert probe(described, python, tmp_path) == probed


def test_a_process_that_dies():
    """What a function returns there is JSON; a process that ends before has none."""
    assert in_fork({"PTEFORGE_PROBED": "1"}, lambda: ["one", {"two": 3}]) == ["one", {"two": 3}]
    assert in_fork({}, lambda: os._exit(3)) is None


def test_limits_are_not_tried_without_a_driver(monkeypatch, capsys):
    """They are told as such: nothing is lowered that could not run."""
    monkeypatch.delenv(LIBRARY, raising=False)
    monkeypatch.setattr(probes, "in_fork", None)  # which cannot be called
    monkeypatch.setattr(logging, "disable", lambda: None)  # here, for all other tests
    monkeypatch.setattr(probes, "CASES", {"upsampling": CASES["upsampling"]})
    probes.main("upsampling")
    assert json.loads(capsys.readouterr().out) == {"upsampling": [NOT_TRIED, ""]}
