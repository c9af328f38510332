"""Accuracy gates of a zoo: what a change scores again, and what happens to a file that misses its gate."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pteforge.configs.load import load_zoo
from pteforge.errors import InputError
from pteforge.flows.cli.progress import print_summary
from pteforge.flows.run.select import select_models
from pteforge.tasks.results.accuracy import AccuracyReport
from pteforge.tests.evaluators.generating import write_model

SCORES = {"baseline/plain", "evaluate/plain", "evaluate/fat"}
REPORTS = {"report/plain", "report/fat"}
JUDGED = {"gate/plain", "gate/fat"} | REPORTS


def zoo(**accuracy):
    """Arguments of `write_zoo`: one model, and a plain and a fat recipe with the same gate."""
    gate = {"evaluator": "scoring:finite", "floor": 0.5, "max_drop": 0.1, **accuracy}
    targets = [{"target": "xnnpack"}, {"target": "portable"}]
    recipes = {
        "plain": {"specializations": [{"target": "portable"}], "accuracy": gate},
        "fat": {"output": {"form": "fat", "external_data": True}, "specializations": targets, "accuracy": gate},
    }
    return {"net": "nets:linear"}, tuple(recipes), recipes


@pytest.fixture(scope="module")
def lowered(lower_project):
    """A project in which all gates were passed, and that run."""
    return lower_project(*zoo())


def provenance(project, recipe):
    return json.loads((project.out / "net" / f"{recipe}.json").read_text(encoding="utf-8"))


def test_scores_are_reported(lowered, capsys):
    """Scores of every payload are in outcome, JSON and provenance; the summary has the worst, and the drop."""
    project, run = lowered
    scored = {"evaluator": "scoring:finite", "floor": 0.5, "max_drop": 0.1, "keep": None, "eager": 1.0}
    payloads = [{"payload": name, "score": 1.0} for name in ("xnnpack", "portable")]
    expected = {**scored, "file": {"scores": payloads, "not_run": {}}}
    assert provenance(project, "fat")["findings"]["accuracy"] == expected
    assert json.loads(json.dumps(run.outcome.to_json()))["models"]["net"]["fat"]["accuracy"] == expected
    print_summary(run.outcome)
    table = capsys.readouterr().out
    assert "score" in table
    assert table.count("1 (+0)") == 2
    assert {name for name in run.ran("net") if name.startswith(("baseline", "evaluate"))} == SCORES
    (model,) = run.outcome.models
    rest = ([each for each in recipe.findings if each.role != "accuracy"] for recipe in model.recipes)
    recipes = (replace(recipe, findings=tuple(left)) for recipe, left in zip(model.recipes, rest, strict=True))
    unscored = replace(model, recipes=tuple(recipes))
    print_summary(replace(run.outcome, models=(unscored,)))
    assert "score" not in capsys.readouterr().out  # nothing was scored, so there is no column


def test_other_bounds_score_nothing(made, lower):
    """A second run does nothing; a changed floor is compared with the stored scores."""
    assert lower(made).ran("net") == set()
    run = lower(made, "recipes.plain.accuracy.floor=0.75")
    assert run.outcome.exit_code == 0
    assert run.ran("net") == {"gate/plain", "report/plain"}
    assert provenance(made, "plain")["findings"]["accuracy"]["floor"] == 0.75


def test_another_evaluator_scores_again(made, lower):
    """An edit of the evaluator scores eager and files again, and lowers nothing; a comment does nothing."""
    made.edit("scoring.py", "import torch\n\n", "import torch\n\n# a comment\n")
    assert lower(made).ran("net") == set()
    made.edit("scoring.py", ".all())", ".all().item())")
    assert lower(made).ran("net") == SCORES | REPORTS
    made.edit("scoring.py", "return scale *", "return 0.75 * scale *")
    assert lower(made).ran("net") == SCORES | JUDGED


def test_declared_files_count(made, lower):
    """Files that an evaluator declares are part of the key: other content is scored again."""
    made.write("labels.txt", "0.75")
    made.write_zoo(*zoo(kwargs={"labels": "labels.txt"}, files=["labels.txt"]))
    assert lower(made).ran("net") == SCORES | JUDGED
    assert provenance(made, "plain")["findings"]["accuracy"]["file"]["scores"] == [{"payload": "", "score": 0.75}]
    assert lower(made).ran("net") == set()
    made.write("labels.txt", "0.875")
    assert lower(made).ran("net") == SCORES | JUDGED


def test_a_missed_gate(made, lower):
    """It fails its recipe with the difference; other recipes are made, and the file is kept under another name."""
    files = made.files()
    for name in files:
        (made.out / name).unlink()
    run = lower(made, "recipes.fat.accuracy.floor=1.5")
    assert run.outcome.exit_code == 1
    (model,) = run.outcome.models
    plain, fat = model.recipes
    kept = made.out / "net" / "fat.rejected.pte"
    assert (plain.status, fat.status, fat.failure.step) == ("cached", "failed", "gate/fat")
    for part in ("scoring:finite", "'xnnpack' scores 1, 0.5 below the floor of 1.5", "'portable' scores", str(kept)):
        assert part in fat.failure.problem
    assert run.outcome.to_json()["models"]["net"]["fat"]["rejected"] == str(kept)
    assert made.files() == {
        "net/plain.pte": files["net/plain.pte"],
        "net/plain.json": files["net/plain.json"],
        "net/fat.rejected.pte": files["net/fat.pte"],
        "net/fat.rejected.ptd": files["net/fat.ptd"],
    }
    assert lower(made).ran("net") == set()
    assert made.files() == files


def test_a_drop(made, lower):
    """A file that scores too far below eager misses its gate, even above its floor."""
    made.edit(
        "scoring.py",
        "    if labels:",
        '    if predict.__qualname__.startswith("loaded"):\n        scale = 0.75\n    if labels:',
    )
    (model,) = lower(made).outcome.models
    assert "0.25 below eager's 1; that is 0.15 more than the 0.1 allowed" in model.recipes[0].failure.problem


def test_an_evaluator_that_fails(made, lower):
    """It is a failed stage with the evaluator's own error; no file is kept as rejected."""
    made.write_zoo(*zoo(evaluator="scoring:raising"))
    run = lower(made)
    assert run.outcome.exit_code == 1
    problem = run.outcome.models[0].recipes[0].failure.problem
    assert "scoring:raising on the produced file failed: OSError: the labels are not there (scoring.py:" in problem
    assert not list(made.out.rglob("*.rejected.*"))


@pytest.mark.parametrize(
    ("recipe", "model", "parts"),
    [
        ({"evaluator": "scoring:finit"}, {}, ("recipes.plain.accuracy", "did you mean 'finite'?")),
        ({"evaluator": "scorings:finite"}, {}, ("recipes.plain.accuracy", "there is no module 'scorings'")),
        ({"files": ["none.txt"]}, {}, ("recipes.plain.accuracy", "there is no file ")),
        ({"floor": None, "max_drop": None}, {}, ("recipes.plain.accuracy", "names an evaluator, but no bound")),
        ({"evaluator": None}, {}, ("recipes.plain.accuracy", "neither the recipe nor the model names an `evaluator`")),
        ({}, {"evaluator": "scoring:finit"}, ("models.net.accuracy.evaluator", "did you mean 'finite'?")),
        ({}, {"files": ["none.txt"]}, ("models.net.accuracy.files[0]", "there is no file ")),
    ],
)
def test_refused_before_any_work(project, lower, recipe, model, parts):
    """An unusable gate is reported where the recipe or the model defines it, before any work starts."""
    _, names, recipes = zoo(**recipe)
    project.write_zoo({"net": {"source": "nets:linear", "accuracy": model}}, names, recipes)
    with pytest.raises(InputError) as refused:
        lower(project)
    for part in parts:
        assert part in str(refused.value)
    assert not project.store.exists()


@pytest.mark.slow
def test_from_the_command_line(made):
    """The message is on standard error, the exit code is 1, and the rejected file can be run."""
    done = made.export("--set", "recipes.plain.accuracy.floor=1.5")
    assert done.code == 1
    assert "failed at gate" in done.out
    assert "the file scores 1, 0.5 below the floor of 1.5" in done.err
    assert "out/net/plain.rejected.pte" in done.err
    run = made.run("run", "out/net/plain.rejected.pte")
    assert run.code == 0, run.err


def test_gates_decide_about_quantized_files(project):
    """Bounds of shipped recipes are not for quantized files that a gate judges; the user's own are."""
    gate = {"accuracy": {"evaluator": "scoring:finite", "floor": 0.5}}
    recipes = {
        "int8": {"extends": "xnnpack-int8-dynamic", **gate},
        "own": {"extends": "xnnpack-int8-dynamic", **gate, "verify": {"min_sqnr_db": 15}},
        "fp32": {"extends": "xnnpack-fp32", **gate},
        "ungated": {"extends": "xnnpack-int8-dynamic"},
    }
    bounded = {"source": "nets:linear", "verify": {"max_abs_error": 0.5}}
    project.write_zoo({"net": "nets:linear", "bounded": bounded}, tuple(recipes), recipes)
    models = {model.name: model for model in select_models(load_zoo(project.folder / "zoo.yaml"))}
    found = {recipe.name: recipe.bounds.min_sqnr_db for recipe in models["net"].recipes}
    assert found == {"int8": None, "own": 15, "fp32": 80, "ungated": 20}
    assert models["bounded"].recipes[0].bounds.min_sqnr_db == 20


GENERATES = {
    "t5": ("chrf", 100, {"tokens": 12}),
    "llama": ("exact_match", 1, {"tokens": 12}),
    "whisper": ("neg_word_error_rate", 0, {"tokens": 12, "decoder_prompt": ""}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", GENERATES)
@pytest.mark.timeout(900)
def test_what_models_say(project, lower, kind):
    """A file says what `generate` says, and passes; one with other weights says something else, and is rejected."""
    metric, perfect, options = GENERATES[kind]
    write_model(project.folder, kind)
    project.write(
        "transforms.py", "def halve(module):\n    for weight in module.parameters():\n        weight.data /= -2\n"
    )
    gate = {
        "evaluator": f"pteforge.evaluators:{metric}",
        "kwargs": {"file": f"{kind}.jsonl", "processor": kind, **options},
        "floor": perfect - 0.01,
        "max_drop": 0.01,
    }
    recipes = {
        "exact": {"extends": "portable-fp32"},
        "other": {"extends": "portable-fp32", "source_transforms": [{"callable": "transforms:halve"}]},
    }
    source = {"huggingface": f"./{kind}", "sequence": 32}
    project.write_zoo({"net": {"source": source, "accuracy": gate}}, tuple(recipes), recipes)
    (model,) = lower(project).outcome.models
    exact, other = model.recipes
    assert (exact.status, exact.failure) == ("made", None)
    scored = exact.get(AccuracyReport)
    assert scored.eager == scored.file.scores[0].score == pytest.approx(perfect)
    assert other.failure.step == "gate/other"
    assert f"evaluator pteforge.evaluators:{metric}: " in other.failure.problem
    assert f"below eager's {perfect}" in other.failure.problem
    if kind == "whisper":  # a sound is part of the key
        write_model(project.folder, kind)
        (project.folder / "0.wav").write_bytes((project.folder / "1.wav").read_bytes())
        assert "evaluate/exact" in lower(project).ran("net")
