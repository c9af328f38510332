"""ladder: every program on the way to a file is run on real inputs and compared with eager."""

from __future__ import annotations

import json

import pytest
from pteforge.tasks.catalog import StageName
from pteforge.tasks.numerics import Ladder
from pteforge.tasks.numerics_params import LadderParams, RungParams
from pteforge.tasks.params import EdgeParams

INT8 = {"specializations": [{"target": "xnnpack"}], "quantize": {"quantizer": "xnnpack"}, "verify": {"min_sqnr_db": 10}}


def by_rung(ladder):
    """Figures by rung, of a model with one method."""
    return {rung.label: rung.figures for rung in ladder.rungs}


@pytest.mark.slow
def test_quantized_recipe(stages):
    """A recipe that quantizes has every rung without being asked.

    It is exact until it is quantized, and then as far off as verification finds the file. Provenance has the same.
    """
    lowered = stages.lower("chain_models:conv_net", INT8)
    stored = json.loads(stages.store.read_artifact(lowered.outputs["ladder/tested"]["numerics"]))
    ladder = Ladder.from_json(stored)
    figures = by_rung(ladder)

    assert list(figures) == ["exported", "quantized", "edge", "payload"]
    assert figures["exported"].sqnr_db is None
    assert 10 < figures["quantized"].sqnr_db < 60
    verified = lowered.provenance["verification"]["figures"]["overall"]
    assert figures["payload"].sqnr_db == verified["sqnr_db"]
    assert figures["payload"].cases == verified["cases"] == 3
    assert lowered.provenance["numerics"] == stored == json.loads(json.dumps(ladder.to_json()))


@pytest.mark.slow
def test_fat_recipe(stages, install_target):
    """A fat file has rungs for each edge program and each payload, for every method; one that cannot run says why.

    An edge program that specializations share is one rung.
    """
    install_target({"recording": "recording_target:Recording"})
    fat = {
        "specializations": [{"target": "recording"}, {"target": "portable"}],
        "output": {"form": "fat"},
        "verify": {"ladder": True},
    }
    lowered = stages.lower("chain_models:waves", fat)
    ladder = Ladder.from_json(lowered.provenance["numerics"])

    labels = ["exported", "edge.recording+portable", "payload.recording", "payload.portable"]
    assert [(rung.label, rung.method) for rung in ladder.rungs] == [
        (label, method) for label in labels for method in ("forward", "encode", "plain")
    ]
    (problem,) = {rung.problem for rung in ladder.rungs if rung.label == "payload.recording"}
    assert problem == "needs RecordingBackend, which this machine's runtime does not have"
    assert all(rung.figures for rung in ladder.rungs if rung.label != "payload.recording")


def ladder_of(stages, exported, rung, program):
    """The ladder of an exported program and one more."""
    params = LadderParams(
        rungs=(RungParams(name="exported"), RungParams(name=rung)), methods=("forward",), drawn_inputs=2
    )
    inputs = {
        "examples/forward": exported["examples"],
        "rung/exported/forward": exported["program"],
        f"rung/{rung}/forward": program,
    }
    numerics = stages.run(StageName.LADDER, params, inputs)["numerics"]
    return Ladder.from_json(json.loads(stages.store.read_artifact(numerics)))


@pytest.mark.parametrize("builder", ["counter", "smoothing", "conditional"])
def test_every_run_starts_anew(stages, builder):
    """A program with state starts from its first state on each input; one with branches runs, too."""
    exported = stages.export(f"chain_models:{builder}")
    edge = stages.run(StageName.EDGE, EdgeParams(), {"program": exported["program"]})["program"]
    ladder = ladder_of(stages, exported, "edge", edge)
    assert all(rung.problem == "" for rung in ladder.rungs)
    assert all(rung.figures.sqnr_db is None or rung.figures.sqnr_db > 110 for rung in ladder.rungs)


def test_what_cannot_be_run(stages):
    """A rung that fails says why, and the others have their figures."""
    exported = stages.export("chain_models:conv_net")
    other = stages.export("chain_models:two_methods", method="encode")
    ladder = ladder_of(stages, exported, "edge", other["program"])
    good, bad = ladder.rungs
    assert good.figures.sqnr_db is None
    assert bad.figures is None
    assert bad.problem
    assert "\n" not in bad.problem
