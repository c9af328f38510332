"""serialize and report: what is delivered, and what is said of it."""

from __future__ import annotations

import hashlib
import json

import pytest
from pteforge.artifacts.pte.pieces import read_payload
from pteforge.configs.verify_bounds import VerifyBounds
from pteforge.errors import PteforgeError
from pteforge.tasks.catalog import StageName
from pteforge.tasks.params import ReportParams, SerializeParams, TargetParams

XNNPACK = {"specializations": [{"target": "xnnpack"}]}


@pytest.fixture
def lowered(stages):
    """A model of two methods."""
    return stages.lower("chain_models:two_methods", XNNPACK)


def serialize(stages, lowered, methods=("forward", "encode"), backends=("XnnpackBackend",)):
    """The serialize stage on the payload."""
    params = SerializeParams(form="plain", methods=methods, backends=backends)
    return stages.run(StageName.SERIALIZE, params, lowered.outputs["compile/tested"])


def test_plain_is_the_payload(stages, lowered):
    """The file of the plain form is the payload, byte for byte."""
    assert serialize(stages, lowered) == {"file": lowered.outputs["compile/tested"]["payload"]}


def test_missing_methods(stages, lowered):
    """A file without a method that the model has is not delivered."""
    with pytest.raises(PteforgeError, match=r"lacks the methods \['decode'\]; it has \['encode', 'forward', '"):
        serialize(stages, lowered, methods=("forward", "decode"))


def test_stranger_backends(stages, lowered):
    """Nor is one that needs a backend which its target does not name; one that needs fewer is."""
    with pytest.raises(PteforgeError, match=r"needs the backends \['XnnpackBackend'\], which its target does not name"):
        serialize(stages, lowered, backends=())
    serialize(stages, lowered, backends=("XnnpackBackend", "OtherBackend"))


def report(stages, lowered, **changes):
    """The report stage's bytes, with params of our own."""
    params = ReportParams(
        model="model",
        recipe="tested",
        specializations={"xnnpack": TargetParams(name="xnnpack", options={"per_operator": False})},
        stage_keys={"export": "1" * 64, "edge/forward/tested": "2" * 64},
        versions={"torch": "2.13.0", "executorch": "1.5.1"},
        bounds=VerifyBounds(min_sqnr_db=70.0),
    ).model_copy(update=changes)
    plan = {step.name: step for step in lowered.plan.steps}
    inputs = {role: lowered.outputs[output.step][output.role] for role, output in plan["report/tested"].inputs.items()}
    return stages.store.read_artifact(stages.run(StageName.REPORT, params, inputs)["provenance"])


def test_provenance(stages, lowered):
    """It names the file by its SHA-256, what is in it, what made it, from what, and how close it is to eager."""
    said = json.loads(report(stages, lowered))
    content = read_payload(lowered.outputs["serialize/tested"]["file"], stages.store)

    assert said["file"] == {
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "methods": ["encode", "forward", "sample_rate", "version"],
        "backends": ["XnnpackBackend"],
        "payloads": [],
    }
    assert (said["data"], said["left_out"]) == (None, [])
    assert (said["model"], said["recipe"], said["format"]) == ("model", "tested", 1)
    assert said["specializations"] == {"xnnpack": {"name": "xnnpack", "options": {"per_operator": False}}}
    assert said["toolchain"] == {"torch": "2.13.0", "executorch": "1.5.1"}
    assert said["stage_keys"] == {"export": "1" * 64, "edge/forward/tested": "2" * 64}
    assert set(said["artifacts"]) == {"file", "figures", "examples/forward", "examples/encode"}
    assert said["verification"]["bounds"]["min_sqnr_db"] == 70.0
    assert set(said["verification"]["figures"]["methods"]) == {"forward", "encode"}


def test_stage_keys_are_those_of_the_recipes_steps(lowered):
    """The plan fills in one key for each step that the file came through, and none for the report itself."""
    steps = {step.name.removesuffix("/tested") for step in lowered.plan.steps} - {"report"}
    assert set(lowered.provenance["stage_keys"]) == steps


def test_equal_work_has_equal_provenance(stages, lowered, tmp_path):
    """It says nothing of when, where or how long: the same bytes in a second run, in which no path occurs."""
    first, again = report(stages, lowered), report(stages, lowered)
    assert first == again
    assert str(tmp_path).encode() not in first
    assert json.loads(first).keys() == {
        "format",
        "model",
        "recipe",
        "specializations",
        "left_out",
        "file",
        "data",
        "toolchain",
        "stage_keys",
        "artifacts",
        "verification",
    }
