"""A disk that becomes full in the middle of a run."""

from __future__ import annotations

import os
import re

import pytest
from pteforge.tests.faults.faulty_files import small_disk

# 32 MiB of weights that do not compress, in one tensor.
LARGE = """
import torch
def large():
    torch.manual_seed(0)
    return torch.nn.Embedding(1 << 17, 64), (torch.zeros(1, 2, dtype=torch.int64),)
"""


# Its builder leaves no space in the store at all.
FILLS = """
import contextlib
from pathlib import Path
import torch
def fills():
    with contextlib.suppress(OSError), (Path(__file__).parent / "store" / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return torch.nn.Linear(4, 4).eval(), (torch.zeros(1, 4),)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_other_models_are_made(project):
    """The stage fails and says what to do, other models are made, and the next run makes what is missing."""
    project.write("large.py", LARGE)
    project.write_zoo({"large": "large:large", "linear": "nets:linear"}, ("portable-fp32",))
    project.store.mkdir(mode=0o700)
    with small_disk(project.store, 24 << 20) as enlarge:
        full = project.export("--jobs", "1")
        assert full.code != 0
        assert "No space left on device" in full.err + full.out
        assert "free some space (pteforge store gc)" in full.err + full.out
        assert [*project.out.glob("*/*.pte")] == [project.out / "linear" / "portable-fp32.pte"]
        enlarge()
        done = project.export("--json")
        assert done.code == 0, done.err
        assert done.json["models"]["linear"]["portable-fp32"]["status"] == "cached"
        assert project.run("store", "verify").code == 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_nothing_fits(project):
    """All models fail, for a reason that may pass by itself; the run's record says so, and `gc` why all stays."""
    project.write("fills.py", FILLS)
    project.write_zoo({"fills": "fills:fills", "linear": "nets:linear"}, ("portable-fp32",))
    project.store.mkdir(mode=0o700)
    with small_disk(project.store, 24 << 20):
        full = project.export("--jobs", "1")
        assert full.code == 1, full.err
        assert "No space left on device" in full.err
        assert "Traceback" not in full.err
        (run,) = project.run("runs", "--json").json["runs"]
        assert run["status"] == "failed"
        assert [files["portable-fp32"]["bad_input"] for files in run["files"].values()] == [False, False]
        kept = project.run("store", "gc")
        assert kept.code == 0
        assert "removed 0 objects" in kept.out
        (objects,) = map(int, re.findall(r"; kept (\d+) objects", kept.out))
        reasons = {
            "needed by no stage, written within the grace period (--keep-newer-than)",
            "needed by finished stages that no option forgets",
        }  # which of them depends on how far a stage came
        explained = re.findall(r"^ +(\d+) objects +[\d.]+ \w+  (.*)$", kept.out, re.MULTILINE)
        assert objects == sum(int(count) for count, _ in explained) > 0
        assert {reason for _, reason in explained} <= reasons
