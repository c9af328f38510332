"""Accuracy gates of models that are passed as objects."""

from __future__ import annotations

import copy
from pathlib import Path

import pteforge
import pytest
import torch
from pteforge.api.recipes import find_recipe
from pteforge.errors import AccuracyMissed, InputError, StageFailed
from pteforge.tasks.results.accuracy import AccuracyReport
from pteforge.tests.lowering import checked_recipe


def gated(evaluator="largest", **bounds):
    """A recipe with a gate."""
    accuracy = {"evaluator": f"evaluators:{evaluator}", **bounds}
    return checked_recipe("portable", accuracy=accuracy)


def report(result):
    return AccuracyReport.from_json(result.artifact("gate"))


def test_a_floor(net, example, store):
    """The evaluator scores the file in this process; if the score is too low, the error has the numbers."""
    folder = Path.cwd()
    result = pteforge.export(net, example, recipe=gated(floor=-100.0), store=store)
    expected = copy.deepcopy(net).eval()(torch.ones(2, 4)).max().item()
    assert report(result).worst == pytest.approx(expected, abs=1e-5)
    assert report(result).eager is None
    assert not result.rejected
    assert Path.cwd() == folder
    with pytest.raises(AccuracyMissed, match=r"evaluators:largest: the file .*floor of 100"):
        pteforge.export(net, example, recipe=gated(floor=100.0), store=store)


def test_a_greatest_drop(nets, net, example, store, ran):
    """The file is compared with the module itself, which stays unchanged and is scored once; others are scored too."""
    before = copy.deepcopy(net.state_dict())
    recipe = gated(max_drop=0.001)
    result = pteforge.export(net, example, recipe=recipe, store=store)
    assert report(result).eager == pytest.approx(report(result).worst, abs=1e-5)
    assert "baseline" in ran(result)
    assert net.training
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    assert "baseline" not in ran(pteforge.export(net, example, recipe=recipe, store=store))
    other = pteforge.export(nets.Normed(), example, recipe=recipe, store=store)
    assert "baseline" in ran(other)
    assert report(other).eager == pytest.approx(report(other).worst, abs=1e-5) != report(result).eager


@pytest.mark.slow
def test_a_rejected_file(net, example, store, tmp_path):
    """The error of a missed gate has the rejected result: its file can be saved and run, and has no provenance."""
    gate = {"evaluator": "evaluators:likeness", "max_drop": 0.0}
    quantized = checked_recipe("xnnpack", quantize={}, verify={"min_sqnr_db": None}, accuracy=gate)
    with pytest.raises(AccuracyMissed, match=r"below eager's 0; .*the 0 allowed") as caught:
        pteforge.export(net, example, recipe=quantized, store=store)
    rejected = caught.value.rejected
    assert isinstance(rejected, pteforge.Exported)
    assert rejected.rejected
    assert rejected.save(tmp_path / "net.pte").read_bytes() == rejected.pte
    assert rejected.run_method()[0].shape == (2, 3)
    assert rejected.figures.overall.sqnr_db > 10
    assert isinstance(caught.value.__cause__, StageFailed)
    with pytest.raises(InputError, match="stage 'report' in this run"):
        _ = rejected.provenance


def test_evaluators_change_no_state(nets, store):
    """Evaluations run on fresh copies, of modules and of exported programs; the third call depends on those before."""
    given = (torch.ones(2, 4),)
    counter = nets.Counter()
    program = torch.export.export(copy.deepcopy(counter), given)
    eager = copy.deepcopy(counter)
    expected = [float(eager(*given).sum().detach()) for _ in range(3)][-1]
    for model in (counter, program):
        scored = report(pteforge.export(model, given, recipe=gated("last_of_three", max_drop=1e-3), store=store))
        assert scored.eager == pytest.approx(expected, rel=1e-5)
        assert scored.worst == pytest.approx(expected, rel=1e-5)
    assert counter.calls == program.state_dict["calls"] == 0


def test_an_evaluator_that_fails(net, example, store):
    """An evaluator that raises on the eager model is bad input, with its name and its error."""
    problem = "evaluator evaluators:raising_on_eager on the eager model failed: OSError: no images"
    with pytest.raises(StageFailed, match=problem) as caught:
        pteforge.export(net, example, recipe=gated("raising_on_eager", max_drop=0.1), store=store)
    assert caught.value.bad_input


@pytest.mark.parametrize(("verify", "bound"), [({}, None), ({"verify": {"min_sqnr_db": 15}}, 15)], ids=["none", "own"])
def test_bounds_beside_a_gate(verify, bound):
    """Those that a shipped recipe has do not hold where the score decides; those that the user writes do."""
    gate = {"accuracy": {"evaluator": "scores:of", "floor": 0.5}}
    found = find_recipe({"extends": "xnnpack-int8-static", **gate, **verify})
    assert found.planned.bounds.min_sqnr_db == bound
