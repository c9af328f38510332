"""Accuracy gates of models that are handed over as objects."""

from __future__ import annotations

import copy
from pathlib import Path

import pteforge
import pytest
from pteforge.configs import Recipe
from pteforge.errors import AccuracyMissed, InputError, StageFailed
from pteforge.tasks.accuracy import AccuracyReport

ZOO = Path(__file__).parent / "zoo"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Evaluators are imported by name."""
    monkeypatch.syspath_prepend(ZOO)


def gated(evaluator="largest", kwargs=None, **bounds):
    """A recipe with a gate; its evaluators are those of zoo/scores.py."""
    accuracy = {"evaluator": f"scores:{evaluator}", "kwargs": kwargs or {}, **bounds}
    return Recipe.model_validate({"specializations": [{"target": "portable"}], "accuracy": accuracy})


def report(result):
    """Scores beside their bounds."""
    return AccuracyReport.from_json(result.artifact("gate"))


def ran(result):
    """Stages that ran."""
    return [stage.stage for stage in result.stages if stage.status == "ran"]


def test_a_floor(net, example, store):
    """A recipe's evaluator scores the file in this process; where the score is too low, the error has the numbers."""
    import torch

    folder = Path.cwd()
    result = pteforge.export(net, example, recipe=gated(floor=-100.0), store=store)
    expected = copy.deepcopy(net).eval()(torch.ones(2, 4)).max().item()
    assert report(result).worst == pytest.approx(expected, abs=1e-5)
    assert report(result).eager is None
    assert not result.rejected
    assert Path.cwd() == folder
    with pytest.raises(AccuracyMissed, match=r"evaluator scores:largest: the file scores .* below the floor of 100"):
        pteforge.export(net, example, recipe=gated(floor=100.0), store=store)


def test_a_greatest_drop(net, example, store):
    """The file is compared with the module that was handed over, which stays as it is and is scored once."""
    before = copy.deepcopy(net.state_dict())
    recipe = gated(max_drop=0.001)
    result = pteforge.export(net, example, recipe=recipe, store=store)
    assert report(result).eager == pytest.approx(report(result).worst, abs=1e-5)
    assert "baseline" in ran(result)
    assert net.training
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    assert "baseline" not in ran(pteforge.export(net, example, recipe=recipe, store=store))


@pytest.mark.slow
def test_another_model_has_another_score(nets, example, store):
    """Eager's score is that of the model at hand."""
    for _ in range(2):
        result = pteforge.export(nets.Net(), example, recipe=gated(max_drop=0.001), store=store)
        assert "baseline" in ran(result)
        assert report(result).eager == pytest.approx(report(result).worst, abs=1e-5)


@pytest.mark.slow
def test_what_is_below_can_be_looked_into(net, example, store, tmp_path):
    """A missed gate has the result that it rejects: its file can be saved and run, and has no provenance."""
    quantized = Recipe.model_validate(
        {
            "specializations": [{"target": "xnnpack"}],
            "quantize": {},
            "verify": {"min_sqnr_db": None},
            "accuracy": {"evaluator": "scores:likeness", "max_drop": 0.0},
        }
    )
    with pytest.raises(AccuracyMissed, match=r"below eager's 0; that is .* more than the 0 allowed") as caught:
        pteforge.export(net, example, recipe=quantized, store=store)
    rejected = caught.value.rejected
    assert isinstance(rejected, pteforge.Exported)
    assert rejected.rejected
    assert rejected.save(tmp_path / "net.pte").read_bytes() == rejected.pte
    assert rejected.run_method()[0].shape == (2, 3)
    assert rejected.figures.overall.sqnr_db > 10
    assert isinstance(caught.value.__cause__, StageFailed)
    with pytest.raises(InputError, match="was not made"):
        _ = rejected.provenance


def test_state_begins_anew(nets, store):
    """State that the evaluator's calls leave is that of a copy, for modules and for exported programs."""
    import torch

    example = (torch.ones(3),)
    counter = nets.Counter()
    program = torch.export.export(nets.Counter(), example)
    for model in (counter, program):
        for floor in (0.0, 1.0):  # another bound scores nothing again, and another evaluation begins at zero
            result = pteforge.export(
                model,
                example,
                recipe=gated("counts", {"calls": int(2 + floor)}, max_drop=0.0, floor=floor),
                store=store,
            )
            assert (report(result).eager, report(result).worst) == (2 + floor, 2 + floor)
    assert counter.total.sum() == 0
    assert all(value.sum() == 0 for value in program.state_dict.values())


def test_an_evaluator_that_fails(net, example, store):
    """What an evaluator raises on the eager model is told with its name, and says that it is the user's."""
    with pytest.raises(
        StageFailed, match="evaluator scores:failing on the eager model failed: OSError: no images"
    ) as caught:
        pteforge.export(net, example, recipe=gated("failing", max_drop=0.1), store=store)
    assert caught.value.bad_input
