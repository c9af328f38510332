"""A recipe that searches for the layers it must not quantize, from the zoo file to summary, provenance and YAML."""

from __future__ import annotations

import json

import pytest
import yaml
from pteforge.configs.load import load_zoo
from pteforge.errors import InputError
from pteforge.flows.cli.progress import print_summary
from pteforge.flows.run.select import select_models
from pteforge.tasks.results.accuracy import AccuracyReport, FoundQuantization
from pteforge.tasks.results.figures import Figures

FRAGILE = """
import torch

WIDTH = 16


class Net(torch.nn.Module):
    '''Five layers. In two of them, one weight of a row is so large that eight bits make zeros of the others.'''

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = torch.nn.ModuleDict()
        for name in ("first", "brittle", "third", "frail", "last"):
            self.layers[name] = layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)
            weight = torch.rand(WIDTH, WIDTH, generator=generator) / WIDTH
            weight[0] = 0  # so the first feature is always zero
            if name in ("brittle", "frail"):
                weight[1:, 0] = 1000
            layer.weight = torch.nn.Parameter(weight)

    def forward(self, x):
        for layer in self.layers.values():
            x = torch.relu(layer(x))
        return x


def inputs():
    drawn = torch.rand(32, WIDTH, generator=torch.Generator().manual_seed(1))
    drawn[:, 0] = 0
    return drawn


def net():
    return Net().eval(), (inputs(),)


def alike(predict):
    given = predict(inputs())
    wanted = Net()(inputs())
    return 1 - min(1.0, float((given - wanted).abs().mean() / wanted.abs().mean()))
"""
MODEL = {"source": "fragile:net", "accuracy": {"evaluator": "fragile:alike"}}
LAYERS = {"layers.brittle", "layers.frail"}


def zoo(drop=0.1, **quantize):
    """Arguments of `write_zoo`."""
    quantization = {"search": {"drop": drop}, **quantize}
    return {"net": MODEL}, ("int8",), {"int8": {"extends": "xnnpack-int8-static", "quantize": quantization}}


@pytest.fixture(scope="module")
def lowered(lower_project):
    return lower_project(*zoo(), files={"fragile.py": FRAGILE})


def test_fewest_layers(lowered, made, lower, capsys):
    """The two layers that eight bits break stay in floating point; the recipe that is written makes the same file."""
    run = lowered[1]
    (outcome,) = run.outcome.models[0].recipes
    assert outcome.status == "made", outcome.failure
    search, accuracy = outcome.get(FoundQuantization), outcome.get(AccuracyReport)
    assert set(search.layers) == LAYERS
    tried = [(0, False), (1, False), (2, True), (1, False)]  # at last, the worse of the two is quantized again
    assert [(attempt.layers, attempt.passes) for attempt in search.attempts] == tried
    assert (accuracy.max_drop, accuracy.worst) == (0.1, search.attempts[2].score)
    print_summary(run.outcome)
    said = " ".join(capsys.readouterr().out.split())
    assert "net/int8: in floating point: 2 of 5 layers (layers." in said
    assert "4 files were scored; the recipe is in" in said
    assert json.loads(json.dumps(run.outcome.to_json()))["models"]["net"]["int8"]["search"]["ranked"] == 5

    assert {name for name in run.ran("net") if name.startswith("quantize")} == {
        f"quantize/forward/int8{attempt}"
        for attempt in ("#1", "#2", "#4", "")  # the last one's file is that of the recipe
    }
    found = made.out / "net" / "int8.found.yaml"
    provenance = json.loads((made.out / "net" / "int8.json").read_text(encoding="utf-8"))
    assert FoundQuantization.from_json(provenance["findings"]["search"]) == search
    again = lower(made)
    assert again.ran("net") == set()
    assert again.outcome.models[0].recipes[0].get(FoundQuantization) == search
    found_again = found.read_bytes()
    found.unlink()
    assert lower(made).ran("net") == set()
    assert found.read_bytes() == found_again

    written = yaml.safe_load(found_again)["recipes"]
    quantize = {"search": None, "exclude": list(search.exclude)}
    assert written == {"int8-found": {"extends": "int8", "accuracy": {"max_drop": 0.1}, "quantize": quantize}}
    models, _, recipes = zoo()
    made.write_zoo(models, ("int8-found",), {**recipes, **written})
    plain = lower(made)
    assert plain.outcome.exit_code == 0
    assert {name for name in plain.ran("net") if name.startswith(("quantize", "edge", "partition"))} == set()
    assert not (made.out / "net" / "int8-found.found.yaml").exists()


def test_nothing_to_leave_out(made, lower):
    """A file that passes as it is, is the only one that is made; a recipe that no longer searches leaves no YAML."""
    made.write_zoo(*zoo(drop=1.0))
    run = lower(made)
    (outcome,) = run.outcome.models[0].recipes
    search = outcome.get(FoundQuantization)
    assert (search.layers, len(search.attempts)) == ((), 1)
    assert search.label == "no layer"
    assert (made.out / "net" / "int8.found.yaml").exists()
    gated = {**MODEL, "accuracy": {**MODEL["accuracy"], "max_drop": 1.0}}
    made.write_zoo({"net": gated}, ("int8",), {"int8": {"extends": "xnnpack-int8-static"}})
    assert {name.partition("/")[0] for name in lower(made).ran("net")} <= {"report", "serialize", "verify"}
    assert not (made.out / "net" / "int8.found.yaml").exists()


OUTLIERS = FRAGILE.replace('("brittle", "frail")', "()").replace("drawn[:, 0] = 0", "drawn[0] *= 2000; drawn[:, 0] = 0")
"""No weight is large, and one sample of 32 is."""
ALIKE = """

def usual(predict):
    given, wanted = predict(inputs()), Net()(inputs())
    return 1 - min(1.0, float((given - wanted)[1:].abs().mean() / wanted[1:].abs().mean()))
"""


def test_variants(made, lower):
    """Variants are tried before layers are left out; the recipe that is written has them."""
    made.write("fragile.py", OUTLIERS + ALIKE)
    searched = {"keep": 0.9, "variants": [{"smooth": True}, {"options": {"ranges": "percentile", "percentile": 90}}]}
    models = {"net": {**MODEL, "accuracy": {"evaluator": "fragile:usual"}}}
    recipes = {"int8": {"extends": "xnnpack-int8-static", "quantize": {"search": searched}}}
    made.write_zoo(models, ("int8",), recipes)
    (outcome,) = lower(made).outcome.models[0].recipes
    assert outcome.status == "made", outcome.failure
    search = outcome.get(FoundQuantization)
    assert [(trial.layers, trial.passes) for trial in search.attempts] == [(0, False), (0, False), (0, True)]
    assert (search.layers, search.variant) == ((), searched["variants"][1])
    plain, smoothed, chosen = (trial.size for trial in search.attempts)
    assert plain == chosen < smoothed  # no layer comes before the one that is smoothed
    written = yaml.safe_load((made.out / "net" / "int8.found.yaml").read_bytes())["recipes"]
    assert written["int8-found"]["quantize"]["options"] == searched["variants"][1]["options"]
    assert lower(made).ran("net") == set()
    made.write_zoo(models, ("int8-found",), {**recipes, **written})
    again = lower(made)
    assert again.outcome.exit_code == 0
    assert {name for name in again.ran("net") if name.startswith(("quantize", "edge", "partition"))} == set()


@pytest.mark.slow
def test_variants_together(made, lower):
    """Where one variant is not enough, the best one is tried together with the others."""
    uneven = OUTLIERS.replace("if name in ():", "if name == 'brittle':").replace("[1:, 0]", "[1, 0]")
    made.write("fragile.py", uneven + ALIKE)
    variants = [{"options": {"per_channel": True}}, {"options": {"ranges": "percentile", "percentile": 90}}]
    quantize = {"options": {"per_channel": False}, "search": {"keep": 0.9, "variants": variants, "budget": 4}}
    models = {"net": {**MODEL, "accuracy": {"evaluator": "fragile:usual"}}}
    made.write_zoo(models, ("int8",), {"int8": {"extends": "xnnpack-int8-static", "quantize": quantize}})
    (outcome,) = lower(made).outcome.models[0].recipes
    assert outcome.status == "made", outcome.failure
    search = outcome.get(FoundQuantization)
    assert [(trial.layers, trial.passes) for trial in search.attempts] == [
        (0, False),
        (0, False),
        (0, False),
        (0, True),
    ]
    assert search.variant == {"options": {**variants[0]["options"], **variants[1]["options"]}}


@pytest.mark.slow
def test_layers_of_smaller_variants(made, lower):
    """Where a variant passes, layers of one whose file is smaller are left out, too."""
    made.write("fragile.py", OUTLIERS + ALIKE)
    quantize = {"options": {"dynamic": True}, "smooth": True}
    searched = {"keep": 0.9, "variants": [{"smooth": False, "options": {"dynamic": False}}]}
    models = {"net": {**MODEL, "accuracy": {"evaluator": "fragile:usual"}}}
    recipe = {"extends": "xnnpack-int8-static", "quantize": {**quantize, "search": searched}}
    made.write_zoo(models, ("int8",), {"int8": recipe})
    (outcome,) = lower(made).outcome.models[0].recipes
    assert outcome.status == "made", outcome.failure
    search = outcome.get(FoundQuantization)
    first, second, *others = search.attempts
    assert (first.passes, second.passes, second.size < 0.99 * first.size) == (True, False, True)
    assert others
    assert all(trial.layers and trial.variant == second.variant for trial in others)
    best = min((trial for trial in search.attempts if trial.passes), key=lambda trial: trial.size)
    assert (len(search.layers), search.variant) == (best.layers, best.variant)


UNSCORED = FRAGILE.replace("return x\n", "unscored = self.branch(x); return x, unscored, -unscored, 2 * unscored\n", 1)
UNSCORED = UNSCORED.replace("(inputs())\n", "(inputs())[0]\n").replace(
    "    def forward(self, x):",
    """        self.branch = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.branch.weight = torch.nn.Parameter(torch.where(torch.arange(16) > 0, 1 / 16, 1e3).expand(16, 16))

    def forward(self, x):""",
    1,
)
"""One more layer loses all that it computes, and the score does not depend on that."""


@pytest.mark.slow
def test_layers_are_quantized_again(made, lower):
    """Layers that lose much are quantized where the others are enough."""
    made.write("fragile.py", UNSCORED)
    made.write_zoo(*zoo())
    (outcome,) = lower(made).outcome.models[0].recipes
    assert outcome.status == "made", outcome.failure
    search = outcome.get(FoundQuantization)
    assert set(search.layers) == LAYERS
    assert max(trial.layers for trial in search.attempts if trial.passes) > len(LAYERS)


STRICT = """

def strict(predict):
    if (score := usual(predict)) < 0.9:
        raise ValueError("nothing is left of it")
    return score
"""


@pytest.mark.slow
def test_files_that_have_no_score(made, lower):
    """They do not pass, and say why; others may, and where none has a score, that is the failure."""
    made.write("fragile.py", OUTLIERS + ALIKE + STRICT)
    models = {"net": {**MODEL, "accuracy": {"evaluator": "fragile:strict"}}}
    for variants in ([{"options": {"ranges": "percentile", "percentile": 90}}], []):
        searched = {"keep": 0.9, "variants": variants}
        recipe = {"extends": "xnnpack-int8-static", "quantize": {"search": searched}}
        made.write_zoo(models, ("int8",), {"int8": recipe})
        run = lower(made)
        (outcome,) = run.outcome.models[0].recipes
        if variants:
            assert (outcome.status, run.outcome.exit_code) == ("made", 0), outcome.failure
            first, second = outcome.get(FoundQuantization).attempts
            assert "nothing is left of it" in first.problem
            assert (first.passes, second.passes, second.problem) == (False, True, "")
            assert lower(made).ran("net") <= {"evaluate/int8#1"}  # failures are not kept
        else:
            assert "nothing is left of it" in outcome.failure.problem


@pytest.mark.slow
def test_scores_on_other_data(made, lower):
    """Files are tried with other arguments of the evaluator, and the one that is found is scored with the gate's."""
    made.write("fragile.py", FRAGILE + PARTS)
    quantize = {"search": {"drop": 0.1, "evaluator_kwargs": {"tuning": True}}}
    recipes = {"int8": {"extends": "xnnpack-int8-static", "quantize": quantize}}
    models = {"net": {**MODEL, "accuracy": {"evaluator": "fragile:of_part"}}}
    made.write_zoo(models, ("int8",), recipes)
    (outcome,) = lower(made).outcome.models[0].recipes
    assert outcome.status == "made", outcome.failure
    tried = next(trial for trial in outcome.get(FoundQuantization).attempts if trial.passes)
    assert tried.score == pytest.approx(1.0, abs=0.1)
    assert outcome.get(AccuracyReport).worst == pytest.approx(tried.score - 1)
    recipes["int8"]["quantize"]["search"].pop("drop")
    made.write_zoo({"net": "fragile:net"}, ("int8",), recipes)
    with pytest.raises(InputError, match=r"search.evaluator_kwargs: there is no evaluator"):
        select_models(load_zoo(made.folder / "zoo.yaml"), "*", "*")


@pytest.mark.slow
def test_files_that_only_pass_on_tuning_data(made, lower):
    """The next one is taken that passes on the gate's own data."""
    made.write("fragile.py", OUTLIERS + ALIKE + EASY)
    searched = {
        "keep": 0.9,
        "variants": [{"options": {"ranges": "percentile", "percentile": 90}}],
        "evaluator_kwargs": {"tuning": True},
    }
    models = {"net": {**MODEL, "accuracy": {"evaluator": "fragile:easy"}}}
    recipe = {"extends": "xnnpack-int8-static", "quantize": {"search": searched}}
    made.write_zoo(models, ("int8",), {"int8": recipe})
    (outcome,) = lower(made).outcome.models[0].recipes
    assert outcome.status == "made", outcome.failure
    search = outcome.get(FoundQuantization)
    assert [trial.passes for trial in search.attempts] == [True, True]
    assert search.variant == searched["variants"][0]
    assert lower(made).ran("net") == set()


EASY = """

def easy(predict, tuning=False):
    return 1.0 if tuning else usual(predict)
"""

PARTS = """

def of_part(predict, tuning=False):
    return alike(predict) - (not tuning)
"""


def test_the_fastest_file(made, lower):
    """With that goal, files that pass are timed, once."""
    made.write_zoo(*zoo(search={"drop": 1.0, "goal": "latency", "variants": [{"options": {"dynamic": True}}]}))
    (outcome,) = lower(made).outcome.models[0].recipes
    search = outcome.get(FoundQuantization)
    assert len(search.attempts) == 2
    assert all(trial.passes and trial.seconds > 0 for trial in search.attempts)
    assert search.variant == min(search.attempts, key=lambda trial: trial.seconds).variant
    again = lower(made)
    assert again.ran("net") == set()
    assert again.outcome.models[0].recipes[0].get(FoundQuantization) == search


def test_budget_of_time(made, lower):
    """Time counts also where stages are cached, so that a second run tries no more files."""
    variants = [{"options": {"ranges": "min_max"}}, {"smooth": True}]
    made.write_zoo(*zoo(search={"drop": 0.1, "budget": "10ms", "variants": variants}))
    for _ in range(2):
        (outcome,) = lower(made).outcome.models[0].recipes
        assert outcome.status == "failed"
        assert "Of 1 (0.01 s are allowed), the best scores" in outcome.failure.problem


def test_budget(made, lower):
    """A search that may make too few files fails, and says how far it came."""
    made.write_zoo(*zoo(search={"drop": 0.1, "budget": 2}))
    (outcome,) = lower(made).outcome.models[0].recipes
    assert outcome.status == "failed"
    problem = "no file passes that `quantize.search` made. Of 2 (2 are allowed), the best scores"
    assert problem in outcome.failure.problem


def test_without_an_evaluator(made, lower):
    """The bounds of `verify` decide, and the score is the SQNR in dB."""
    recipe = {"extends": "xnnpack-int8-static", "quantize": {"search": {}}, "verify": {"min_sqnr_db": 25}}
    made.write_zoo({"net": "fragile:net"}, ("int8",), {"int8": recipe})
    (outcome,) = lower(made).outcome.models[0].recipes
    assert outcome.status == "made", outcome.failure
    search = outcome.get(FoundQuantization)
    assert set(search.layers) == LAYERS
    assert search.attempts[2].score == outcome.get(Figures).overall.sqnr_db > 25
    assert lower(made).ran("net") == set()
    made.write_zoo({"net": "fragile:net"}, ("int8",), {"int8": {**recipe, "verify": {"min_sqnr_db": 100}}})
    (outcome,) = lower(made).outcome.models[0].recipes
    assert "dB, with" in outcome.failure.problem
    assert "accept less with `verify: {min_sqnr_db: ...}`" in outcome.failure.problem


def test_bad_searches(made):
    """A bound for scores without an evaluator, and wrong variants, are refused before any work."""
    made.write_zoo({"net": "fragile:net"}, *zoo()[1:])
    loaded = load_zoo(made.folder / "zoo.yaml")
    with pytest.raises(InputError, match=r"neither .*names an `evaluator`"):
        select_models(loaded, "*", "*")
    made.write_zoo(
        *zoo(search={"drop": 0.1, "variants": [{"smooth": True}, {"options": {"dynamic": True, "range": 1}}]})
    )
    loaded = load_zoo(made.folder / "zoo.yaml")
    with pytest.raises(InputError, match=r"recipes.int8.quantize.search.variants\[1\].options.*ranges"):
        select_models(loaded, "*", "*")
