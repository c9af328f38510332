"""Accuracy gates of a zoo: what is scored again after a change, and what becomes of a file that misses its gate."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pteforge.errors import InputError
from pteforge.flows.cli.summary import print_summary

pytestmark = pytest.mark.timeout(600)

SCORES = {"baseline/plain", "evaluate/plain", "evaluate/beside"}
REPORTS = {"report/plain", "report/beside"}
JUDGED = {"gate/plain", "gate/beside"} | REPORTS


def zoo(**accuracy):
    """Models and recipes of a zoo; all recipes have that gate, and bounds of their own."""
    gate = {"evaluator": "scoring:finite", "floor": 0.5, "max_drop": 0.1, **accuracy}
    targets = [{"target": "xnnpack"}, {"target": "portable"}]
    recipes = {
        "plain": {"specializations": [{"target": "portable"}], "accuracy": gate},
        "beside": {"output": {"form": "fat", "external_data": True}, "specializations": targets, "accuracy": gate},
    }
    return {"net": "nets:linear"}, tuple(recipes), recipes


@pytest.fixture(scope="module")
def passed(lower_room):
    """A room in which all gates were passed, and that run; tests take copies of the room."""
    return lower_room(*zoo())


@pytest.fixture
def made(passed, tmp_path):
    """A copy of that room."""
    return passed[0].copy(tmp_path / "copy")


def provenance(room, recipe):
    """What is written beside a file of the net."""
    return json.loads((room.out / "net" / f"{recipe}.json").read_text(encoding="utf-8"))


def test_scores_are_told(passed, capsys):
    """Scores of every payload are in outcome, JSON and provenance; the summary has the worst, and the drop."""
    room, run = passed
    scored = {"evaluator": "scoring:finite", "floor": 0.5, "max_drop": 0.1, "eager": 1.0}
    payloads = [{"payload": name, "score": 1.0} for name in ("xnnpack", "portable")]
    expected = {**scored, "file": {"scores": payloads, "not_run": {}}}
    assert provenance(room, "beside")["accuracy"] == expected
    assert json.loads(json.dumps(run.outcome.to_json()))["models"]["net"]["beside"]["accuracy"] == expected
    print_summary(run.outcome)
    table = capsys.readouterr().out
    assert "accuracy" in table
    assert table.count("1 (+0)") == 2


def test_without_a_gate_there_is_no_column(passed, capsys):
    """The summary of a zoo that scores nothing has no column for it."""
    (model,) = passed[1].outcome.models
    unscored = replace(model, recipes=tuple(replace(recipe, accuracy=None) for recipe in model.recipes))
    print_summary(replace(passed[1].outcome, models=(unscored,)))
    table = capsys.readouterr().out
    assert "SQNR" in table
    assert "accuracy" not in table


def test_eager_is_scored_once(passed):
    """Recipes share one baseline."""
    assert {name for name in passed[1].ran("net") if name.startswith(("baseline", "evaluate"))} == SCORES


def test_a_second_run_scores_nothing(made, lower):
    """Everything is cached."""
    assert lower(made).ran("net") == set()


def test_other_bounds_score_nothing(made, lower):
    """A changed floor is held against the scores there are."""
    run = lower(made, "recipes.plain.accuracy.floor=0.75")
    assert run.outcome.exit_code == 0
    assert run.ran("net") == {"gate/plain", "report/plain"}
    assert provenance(made, "plain")["accuracy"]["floor"] == 0.75


def test_another_evaluator_scores_again(made, lower):
    """An edit of the evaluator scores eager and files again, and lowers nothing; a comment does not even that."""
    made.edit("scoring.py", "import torch\n\n", "import torch\n\n# a comment\n")
    assert lower(made).ran("net") == set()
    made.edit("scoring.py", ".all())", ".all().item())")
    assert lower(made).ran("net") == SCORES | REPORTS
    made.edit("scoring.py", "return scale *", "return 0.75 * scale *")
    assert lower(made).ran("net") == SCORES | JUDGED


def test_declared_files_count(made, lower):
    """What an evaluator reads and declares is part of what scores: another content is another score."""
    made.write("labels.txt", "0.75")
    made.zoo(*zoo(kwargs={"labels": "labels.txt"}, files=["labels.txt"]))
    assert lower(made).ran("net") == SCORES | JUDGED
    assert provenance(made, "plain")["accuracy"]["file"]["scores"] == [{"payload": "", "score": 0.75}]
    assert lower(made).ran("net") == set()
    made.write("labels.txt", "0.875")
    assert lower(made).ran("net") == SCORES | JUDGED


def test_a_missed_gate(made, lower):
    """It fails its recipe and says by how much; others are made, and the file is kept under a name that says so."""
    files = made.files()
    for name in files:
        (made.out / name).unlink()
    run = lower(made, "recipes.beside.accuracy.floor=1.5")
    assert run.outcome.exit_code == 1
    (model,) = run.outcome.models
    plain, beside = model.recipes
    kept = made.out / "net" / "beside.rejected.pte"
    assert (plain.status, beside.status, beside.failure.step) == ("cached", "failed", "gate/beside")
    assert beside.failure.problem == (
        "AccuracyMissed: evaluator scoring:finite: payload 'xnnpack' scores 1, 0.5 below the floor of 1.5; payload "
        f"'portable' scores 1, 0.5 below the floor of 1.5; the file is kept as {kept}"
    )
    assert run.outcome.to_json()["models"]["net"]["beside"]["rejected"] == str(kept)
    assert made.files() == {
        "net/plain.pte": files["net/plain.pte"],
        "net/plain.json": files["net/plain.json"],
        "net/beside.rejected.pte": files["net/beside.pte"],
        "net/beside.rejected.ptd": files["net/beside.ptd"],
    }
    assert lower(made).ran("net") == set()
    assert made.files() == files


def test_a_drop(made, lower):
    """A file that scores less than eager by more than allowed misses, also where its floor is met."""
    made.edit(
        "scoring.py",
        "    if labels:",
        '    if "_loaded" in predict.__qualname__:\n        scale = 0.75\n    if labels:',
    )
    (model,) = lower(made).outcome.models
    assert (
        "scores 0.75, 0.25 below eager's 1; that is 0.15 more than the 0.1 allowed" in model.recipes[0].failure.problem
    )


def test_an_evaluator_that_fails(made, lower):
    """It is bad input, and what it raised is told; nothing is kept as rejected."""
    made.zoo(*zoo(evaluator="scoring:raising"))
    run = lower(made)
    assert run.outcome.exit_code == 2
    problem = run.outcome.models[0].recipes[0].failure.problem
    assert "scoring:raising on the produced file failed: OSError: the labels are not there (scoring.py:" in problem
    assert not list(made.out.rglob("*.rejected.*"))


@pytest.mark.parametrize(
    ("accuracy", "telling"),
    [
        ({"evaluator": "scoring:finit"}, "did you mean 'finite'?"),
        ({"evaluator": "scorings:finite"}, "there is no module 'scorings'"),
        ({"files": ["none.txt"]}, "there is no file "),
        ({"floor": None, "max_drop": None}, "names an evaluator, but no bound"),
        ({"evaluator": None}, "neither the recipe nor the model names an `evaluator`"),
    ],
)
def test_refused_before_any_work(room, lower, accuracy, telling):
    """A gate that cannot be used is told with its place in the file, before anything starts."""
    room.zoo(*zoo(**accuracy))
    with pytest.raises(InputError) as refused:
        lower(room)
    assert "recipes.plain.accuracy" in str(refused.value)
    assert telling in str(refused.value)
    assert not room.store.exists()


@pytest.mark.parametrize(
    ("own", "field"),
    [
        ({"evaluator": "scoring:finit"}, "models.net.accuracy.evaluator"),
        ({"files": ["none.txt"]}, "models.net.accuracy.files[0]"),
    ],
)
def test_what_a_model_says_is_told_there(room, lower, own, field):
    """Of a gate that recipe and model share, a mistake is told at the one who made it."""
    _, names, recipes = zoo()
    room.zoo({"net": {"source": "nets:linear", "accuracy": own}}, names, recipes)
    with pytest.raises(InputError) as refused:
        lower(room)
    assert field in str(refused.value)


@pytest.mark.slow
def test_from_the_command_line(made):
    """The message is on standard error, the exit code is 1, and the rejected file can be run."""
    done = made.export("--set", "recipes.plain.accuracy.floor=1.5")
    assert done.code == 1
    assert "failed at gate/plain" in done.out
    assert "the file scores 1, 0.5 below the floor of 1.5" in done.err
    assert "out/net/plain.rejected.pte" in done.err
    run = made.run("run", "out/net/plain.rejected.pte")
    assert run.code == 0, run.err
