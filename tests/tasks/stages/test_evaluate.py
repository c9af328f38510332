"""baseline, evaluate and gate: evaluators see eager and produced files alike; what goes wrong is said in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pteforge.errors import AccuracyMissed, PteforgeError, SourceError
from pteforge.tasks.accuracy import AccuracyReport, Score, Scores
from pteforge.tasks.accuracy_params import BaselineParams, EvaluateParams
from pteforge.tasks.catalog import StageName


def gated(evaluator, form="plain", targets=("portable",), kwargs=None, **bounds):
    """A recipe with a gate."""
    return {
        "output": {"form": form},
        "specializations": [{"target": target} for target in targets],
        "verify": {"min_sqnr_db": None},
        "accuracy": {"evaluator": f"evaluators:{evaluator}", "kwargs": kwargs or {}, **bounds},
    }


def accuracy(lowered):
    """What the provenance says of scores."""
    return AccuracyReport.from_json(lowered.provenance["accuracy"])


@pytest.fixture
def scores(stages):
    """Scores of a model, eager or as a file of the portable kernels."""

    def score(model, evaluator, *, eager, seed=0, **kwargs):
        described = {"builder": f"evaluators:{evaluator}", "kwargs": kwargs}
        if eager:
            source = {"builder": f"chain_models:{model}", "kwargs": {}}
            params = BaselineParams(source=source, evaluator=described, seed=seed)
            made = stages.run(StageName.BASELINE, params)
        else:
            lowered = stages.lower(
                f"chain_models:{model}", {"specializations": [{"target": "portable"}], "verify": {"min_sqnr_db": None}}
            )
            inputs = {"file": lowered.outputs["serialize/tested"]["file"]}
            made = stages.run(StageName.EVALUATE, EvaluateParams(evaluator=described, seed=seed), inputs)
        return Scores.from_json(json.loads(stages.store.read_artifact(made["scores"])))

    return score


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "file"])
class TestAlike:
    """What holds for eager and for files."""

    def test_the_number_is_kept(self, eager, scores):
        """The score is what the evaluator returns; its arguments reach it."""
        assert scores("constant", "mean_output", eager=eager, count=3) == Scores((Score("", 1.5),), {})

    def test_nested_outputs_are_flat(self, eager, scores):
        """Several outputs come as a flat tuple; inputs are given as eager takes them."""
        assert scores("nested_outputs", "several_outputs", eager=eager).scores[0].score == 1.0

    def test_outputs_stay(self, eager, scores):
        """What predict gave is not changed by the next call."""
        assert scores("constant", "earlier_outputs_stay", eager=eager).scores[0].score == 1.0

    def test_seeded(self, eager, scores):
        """Random numbers of an evaluator are the same in each run, and those of the model's seed."""
        first = scores("constant", "random_input", eager=eager)
        assert scores("constant", "random_input", eager=eager) == first
        assert scores("constant", "random_input", eager=eager, seed=1) != first

    @pytest.mark.parametrize(
        ("evaluator", "message"),
        [
            ("missing", "importing evaluator evaluators:missing failed: AttributeError: "),
            ("NUMBER", "evaluator evaluators:NUMBER is float, and not a callable"),
            (
                "raising",
                r"evaluators:raising on .* failed: OSError: the labels are not there \(.*evaluators\.py:\d+\)",
            ),
            ("wrong_method", "evaluator runs the method 'decode'; .* has .*'forward'"),
            ("nothing", r"returned NoneType for .*; it must return a number"),
            ("a_tensor", r"returned Tensor for .*; it must return a number, which of a tensor `.item\(\)` gives"),
            ("a_bool", "returned bool for .*; it must return a number"),
            ("not_a_number", "returned nan for .*, which cannot be compared"),
        ],
    )
    def test_evaluators_that_cannot_be_used(self, evaluator, message, eager, scores):
        """What is wrong with an evaluator is the user's to mend, and said with its name."""
        with pytest.raises(SourceError, match=message):
            scores("constant", evaluator, eager=eager)

    def test_inputs_that_do_not_fit(self, eager, scores):
        """The shapes that the evaluator gave are in the message."""
        with pytest.raises(PteforgeError, match=r"method 'forward'.*\(7, 5\)"):
            scores("counter", "wrong_shape", eager=eager)


def test_as_eager_scores(stages):
    """All methods and constants of a file, run on the runtime, score what eager scores, within rounding."""
    made = accuracy(stages.lower("chain_models:two_methods", gated("both_methods", max_drop=1e-4)))
    assert made.eager is not None
    assert made.worst == pytest.approx(made.eager, abs=1e-4)


def test_state_carries_over(stages):
    """A model that counts its calls has counted three in eager and in the file."""
    made = accuracy(stages.lower("chain_models:counter", gated("last_of_three", max_drop=1e-3)))
    assert made.worst == pytest.approx(made.eager, abs=1e-3)


def test_program_files(stages, tmp_path):
    """A model that comes as a `.pt2` file is compared with the program in it."""
    import torch

    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(4),)), tmp_path / "relu.pt2")
    made = accuracy(stages.lower(str(tmp_path / "relu.pt2"), gated("mean_output", max_drop=0)))
    assert made.eager == made.worst == 0.0


@pytest.mark.slow
def test_every_payload_that_runs_here(stages):
    """Of a fat file, payloads are scored by preference; one without a backend here is said not to be."""
    recipe = gated("mean_output", "fat", ("vulkan", "xnnpack", "portable"), {"count": 3}, floor=1.5)
    made = accuracy(stages.lower("chain_models:constant", recipe))
    assert made.file.scores == (Score("xnnpack", 1.5), Score("portable", 1.5))
    assert list(made.file.not_run) == ["vulkan"]
    assert "VulkanBackend" in made.file.not_run["vulkan"]


def test_a_floor_needs_no_eager_model(stages):
    """Where nothing is compared, the model is not built for it."""
    lowered = stages.lower("chain_models:constant", gated("mean_output", floor=0.5))
    assert accuracy(lowered).eager is None
    assert StageName.BASELINE not in {step.stage for step in lowered.plan.steps}


def test_provenance_of_ungated_files(stages):
    """A file without a gate has no word of scores in its provenance."""
    assert (
        "accuracy"
        not in stages.lower("chain_models:constant", {"specializations": [{"target": "portable"}]}).provenance
    )


def test_a_missed_gate(stages):
    """It says evaluator, payload, score, bound and by how much."""
    recipe = gated("fixed", "fat", ("xnnpack", "portable"), {"value": 0.25}, floor=0.75)
    with pytest.raises(AccuracyMissed) as caught:
        stages.lower("chain_models:constant", recipe)
    assert str(caught.value) == (
        "evaluator evaluators:fixed: payload 'xnnpack' scores 0.25, 0.5 below the floor of 0.75; "
        "payload 'portable' scores 0.25, 0.5 below the floor of 0.75"
    )


def test_the_working_folder(stages, monkeypatch):
    """Evaluators run where the zoo file is, as builders do."""
    monkeypatch.setattr("evaluators.fixed", lambda _, value: float(Path.cwd() == stages.folder) * value, raising=False)
    assert accuracy(stages.lower("chain_models:constant", gated("fixed", kwargs={"value": 2.0}, floor=2))).worst == 2.0
