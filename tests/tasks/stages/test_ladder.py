"""ladder: every program on the way to a file is run on real inputs and compared with eager."""

import pytest
from pteforge.tasks.backend.stages.edge import Edge
from pteforge.tasks.results.numerics import Rung, Rungs
from pteforge.tasks.verify.stages.ladder import Ladder, RungParams
from pteforge.tests.lowering import recipe

INT8 = recipe("xnnpack", quantize={"quantizer": "xnnpack"}, verify={"min_sqnr_db": 10})


@pytest.mark.slow
def test_quantized_recipe(stages):
    """A recipe that quantizes has every rung without being asked."""
    lowered = stages.lower("builders:conv_net", INT8)
    stored = lowered.json("ladder", "numerics")
    ladder = Rungs(Rung.found(stored))
    figures = {rung.label: rung.figures for rung in ladder.rungs}

    assert list(figures) == ["exported", "quantized", "edge", "payload"]
    assert figures["exported"].sqnr_db is None
    assert 10 < figures["quantized"].sqnr_db < 60
    verified = lowered.figures["overall"]
    assert figures["payload"].sqnr_db == verified["sqnr_db"]
    assert figures["payload"].cases == verified["cases"] == 1  # its example, which it was calibrated on
    assert lowered.findings["numerics"] == stored


@pytest.mark.slow
def test_fat_recipe(stages, install_target):
    """A fat file has rungs for each edge program and each payload, for every method; one that cannot run says why."""
    install_target({"recording": "targets:Recording"})
    fat = recipe("recording", "portable", verify={"ladder": True})
    lowered = stages.lower("builders:waves", fat)
    ladder = Rungs(Rung.found(lowered.findings["numerics"]))

    labels = ["exported", "edge.recording+portable", "payload.recording", "payload.portable"]
    assert [(rung.label, rung.method) for rung in ladder.rungs] == [
        (label, method) for label in labels for method in ("forward", "encode", "plain")
    ]
    (problem,) = {rung.problem for rung in ladder.rungs if rung.label == "payload.recording"}
    assert problem == "needs RecordingBackend, which this machine's runtime does not have"
    assert all(rung.figures for rung in ladder.rungs if rung.label != "payload.recording")


def ladder_of(stages, exported, rung, program):
    """The ladder of an exported program and one more."""
    params = Ladder.Params(
        rungs=(RungParams(name="exported"), RungParams(name=rung)), methods=("forward",), drawn_inputs=2
    )
    inputs = {
        "examples/forward": exported["examples"],
        "rung/exported/forward": exported["program"],
        f"rung/{rung}/forward": program,
    }
    numerics = stages.run(Ladder, params, inputs)["numerics"]
    return Rungs(Rung.found(stages.json(numerics)))


@pytest.mark.parametrize("builder", ["counter", "smoothing", "branches"])
def test_every_run_starts_from_the_initial_state(stages, builder):
    """A program with state starts from its first state on each input; one with branches runs, too."""
    exported = stages.export(f"builders:{builder}")
    edge = stages.run(Edge, Edge.Params(), {"program": exported["program"]})["program"]
    ladder = ladder_of(stages, exported, "edge", edge)
    assert all(rung.problem == "" for rung in ladder.rungs)
    assert all(rung.figures.sqnr_db is None or rung.figures.sqnr_db > 110 for rung in ladder.rungs)


def test_what_cannot_be_run(stages):
    """A rung that fails says why, and the others have their figures."""
    exported = stages.export("builders:conv_net")
    other = stages.export("builders:two_methods", method="encode")
    ladder = ladder_of(stages, exported, "edge", other["program"])
    good, bad = ladder.rungs
    assert good.figures.sqnr_db is None
    assert bad.figures is None
    assert bad.problem
    assert "\n" not in bad.problem
