"""baseline, evaluate and gate: evaluators see eager and produced files alike; errors name the evaluator."""

from pathlib import Path

import pytest
import torch
from pteforge.errors import PteforgeError, SourceError
from pteforge.tasks.results.accuracy import AccuracyReport, Score, Scores
from pteforge.tasks.verify.stages.baseline import Baseline
from pteforge.tasks.verify.stages.evaluate import Evaluate
from pteforge.tests.lowering import PORTABLE, recipe


def gated(evaluator, *targets, kwargs=None, **bounds):
    """A recipe with a gate, for the portable kernels where no target is given."""
    gate = {"evaluator": f"evaluators:{evaluator}", "kwargs": kwargs or {}, **bounds}
    return recipe(*(targets or ("portable",)), verify={"min_sqnr_db": None}, accuracy=gate)


def accuracy(lowered):
    """What the provenance says of scores."""
    return AccuracyReport.from_json(lowered.findings["accuracy"])


@pytest.fixture
def scores(stages):
    """Scores of a model, eager or as a file of the portable kernels."""

    def score(model, evaluator, *, eager, seed=0, **kwargs):
        described = {"builder": f"evaluators:{evaluator}", "kwargs": kwargs}
        if eager:
            source = {"builder": f"builders:{model}", "kwargs": {}}
            made = stages.run(Baseline, Baseline.Params(source=source, evaluator=described, seed=seed))
        else:
            inputs = stages.lower(f"builders:{model}", PORTABLE, until="serialize").outputs["serialize"]
            made = stages.run(Evaluate, Evaluate.Params(evaluator=described, seed=seed), inputs)
        return Scores.from_json(stages.json(made["scores"]))

    return score


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "file"])
class TestAlike:
    """What holds for eager and for files."""

    def test_scores(self, eager, scores):
        """The score is what the evaluator returns; its arguments reach it."""
        assert scores("constant", "mean_output", eager=eager, count=3) == Scores((Score("", 1.5),), {})
        assert scores("nested_outputs", "several_outputs", eager=eager).scores[0].score == 1.0
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
            ("raising", r"evaluators:raising on .* failed: OSError: the labels are .* \(.*evaluators\.py:\d+\)"),
            ("wrong_method", "evaluator runs the method 'decode'; .* has .*'forward'"),
            ("nothing", r"returned NoneType for .*; it must return a number"),
            ("a_tensor", r"returned Tensor for .*; it must return a number, which of a tensor `.item\(\)` gives"),
            ("a_bool", "returned bool for .*; it must return a number"),
            ("not_a_number", "returned nan for .*, which cannot be compared"),
        ],
    )
    def test_evaluators_that_cannot_be_used(self, evaluator, message, eager, scores):
        """The error names the evaluator and its problem."""
        with pytest.raises(SourceError, match=message):
            scores("constant", evaluator, eager=eager)

    def test_inputs_that_do_not_fit(self, eager, scores):
        """The shapes that the evaluator gave are in the message."""
        with pytest.raises(PteforgeError, match=r"method 'forward'.*\(7, 5\)"):
            scores("counter", "wrong_shape", eager=eager)


@pytest.mark.parametrize(("model", "evaluator"), [("two_methods", "both_methods"), ("counter", "last_of_three")])
def test_as_eager_scores(model, evaluator, stages):
    """All methods and constants of a file score what eager scores, within rounding; state carries over to calls."""
    made = accuracy(stages.lower(f"builders:{model}", gated(evaluator, max_drop=1e-4)))
    assert made.eager is not None
    assert made.worst == pytest.approx(made.eager, abs=1e-4)


def test_program_files(stages, tmp_path):
    """A model that comes as a `.pt2` file is compared with the program in it."""
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(4),)), tmp_path / "relu.pt2")
    made = accuracy(stages.lower(str(tmp_path / "relu.pt2"), gated("mean_output", max_drop=0)))
    assert made.eager == made.worst == 0.0


@pytest.mark.slow
def test_every_payload_that_runs_here(stages):
    """Payloads of a fat file are scored by preference; one whose backend is missing here is listed as not run."""
    recipe = gated("mean_output", "vulkan", "xnnpack", "portable", kwargs={"count": 3}, floor=1.5)
    made = accuracy(stages.lower("builders:constant", recipe))
    assert made.file.scores == (Score("xnnpack", 1.5), Score("portable", 1.5))
    assert list(made.file.not_run) == ["vulkan"]
    assert "VulkanBackend" in made.file.not_run["vulkan"]


def test_what_needs_no_scores(stages):
    """A floor needs no eager model, so none is built; a file without a gate has no word of scores in its provenance."""
    lowered = stages.lower("builders:constant", gated("mean_output", floor=0.5))
    assert accuracy(lowered).eager is None
    assert "baseline" not in lowered.steps
    assert "accuracy" not in stages.lower("builders:constant", PORTABLE).findings


def test_the_working_folder(stages, lower_fresh, monkeypatch):
    """Evaluators run where the zoo file is, as builders do."""
    monkeypatch.setattr("evaluators.fixed", lambda _, value: float(Path.cwd() == stages.folder) * value, raising=False)
    assert accuracy(lower_fresh("builders:constant", gated("fixed", kwargs={"value": 2.0}, floor=2))).worst == 2.0
