"""Pairs that a recipe excludes (`not_for`) are left out, reported with their reason, and are no failures."""

from __future__ import annotations

import pytest

REASON = "its kernels take no such layers"


@pytest.fixture
def partly(warm):
    """The cached project, with a zoo whose XNNPACK recipe is not for the model `linear`."""
    xnnpack = {"extends": "xnnpack-fp32", "not_for": {"lin*": REASON}}
    models = {"linear": {"source": "nets:linear", "dynamic_shapes": {"forward": [{0: {"min": 1, "max": 4}}]}}}
    warm.write_zoo({**models, "conv": "nets:conv"}, own={"xnnpack-fp32": xnnpack})
    return warm


def test_pair_is_left_out(partly, pteforge):
    """The pair is no file and no failure: exit code 0, its status and reason in JSON; others are found as before."""
    (partly.out / "linear" / "xnnpack-fp32.pte").unlink()
    done = pteforge(partly, "export", "zoo.yaml", "--json")
    assert done.code == 0
    assert done.json["stages"] == {"ran": 0, "cached": 19}
    assert done.json["models"]["linear"]["xnnpack-fp32"] == {"status": "not applicable", "reason": REASON}
    assert done.json["models"]["linear"]["portable-fp32"]["status"] == "cached"
    assert done.json["models"]["conv"]["xnnpack-fp32"]["status"] == "cached"
    assert not (partly.out / "linear" / "xnnpack-fp32.pte").exists()


def test_messages(partly, pteforge):
    """The table has the pair, a line below it has the reason, and the last line counts it apart from failures.

    If nothing else was requested, there is nothing to do: an error with the reason and where it is written.
    """
    done = pteforge(partly, "export", "zoo.yaml", "--recipe", "xnnpack-fp32")
    assert done.code == 0
    assert f"linear/xnnpack-fp32 does not apply: {REASON}" in done.out
    (row,) = (line for line in done.out.splitlines() if line.split()[:2] == ["linear", "xnnpack-fp32"])
    assert row.split(maxsplit=2)[2].strip() == "not applicable"
    assert "1 files verified in out, 1 not applicable; 0 stages run" in done.out
    pteforge(partly, "why", "linear").refused("no stage of 'linear' ran or was found in its last run")
    pteforge(partly, "export", "zoo.yaml", "--model", "linear", "--recipe", "xnnpack-fp32").refused(
        f"'xnnpack-fp32' does not apply to 'linear': {REASON}", "zoo.yaml:", "recipes.xnnpack-fp32.not_for"
    )
