"""A disk that becomes full in the middle of a run."""

from __future__ import annotations

import os

import pytest
from pteforge.tests.faults.faulty_files import small_disk

# 32 MiB of weights that do not compress, in one tensor.
LARGE = """
import torch
def large():
    torch.manual_seed(0)
    return torch.nn.Embedding(1 << 17, 64), (torch.zeros(1, 2, dtype=torch.int64),)
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
