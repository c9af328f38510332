"""Accuracy gates as written: what a recipe says and what a model says make one, or are told apart in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from pteforge.configs.accuracy import Accuracy, resolve_gate
from pteforge.configs.zoo import Zoo

ZOO = """
    version: 1
    models:
      a: {source: 'p:a', recipes: [plain, gated], accuracy: %s}
    recipes:
      plain: {specializations: [{target: portable}]}
      gated: {specializations: [{target: portable}], accuracy: %s}
"""


def gate(load, model, recipe):
    """The gate of model `a` with recipe `gated`, with what each of them says in YAML."""
    return load(ZOO % (model, recipe)).zoo.accuracy_gate("a", "gated")


def test_recipe_says_all(load):
    """A recipe alone may name evaluator, arguments and bounds."""
    made = gate(load, "null", "{evaluator: 'p:score', kwargs: {n: 3}, floor: 0.9, max_drop: 0}")
    assert (made.evaluator.builder, made.evaluator.kwargs) == ("p:score", {"n": 3})
    assert (made.floor, made.max_drop) == (0.9, 0.0)


def test_model_names_the_evaluator_and_the_recipe_the_bound(load):
    """Each says its part; a recipe of the same model that bounds nothing has no gate."""
    zoo = load(ZOO % ("{evaluator: 'p:score'}", "{max_drop: 0.01}")).zoo
    assert zoo.accuracy_gate("a", "gated").evaluator.builder == "p:score"
    assert zoo.accuracy_gate("a", "gated").max_drop == 0.01
    assert zoo.accuracy_gate("a", "plain") is None


def test_fields_of_the_model_count_instead(load):
    """Of the recipe's fields, those that the model writes are replaced, null included, and the others stay."""
    made = gate(load, "{floor: null}", "{evaluator: 'p:score', kwargs: {n: 3}, floor: 0.9, max_drop: 0.1}")
    assert (made.evaluator.kwargs, made.floor, made.max_drop) == ({"n": 3}, None, 0.1)


def test_another_evaluator_has_its_own_arguments(load):
    """Arguments of the recipe's evaluator are not handed to the model's."""
    recipe = "{evaluator: 'p:score', kwargs: {n: 3}, files: [x.csv], floor: 0.9}"
    assert gate(load, "{evaluator: 'p:other'}", recipe).evaluator.model_dump() == {
        "builder": "p:other",
        "kwargs": {},
        "files": (),
    }


def test_a_model_can_do_without(load):
    """A model that has no use for the recipe's gate writes null."""
    nothing = "{evaluator: null, floor: null, max_drop: null}"
    assert gate(load, nothing, "{evaluator: 'p:score', floor: 0.9}") is None


def test_files_lie_beside_the_zoo_file(load, tmp_path):
    """Relative paths are those from the zoo file, in recipes, in models, and in what all models get."""
    made = gate(load, "null", "{evaluator: 'p:score', files: [labels.csv], floor: 1}")
    assert made.evaluator.files == (tmp_path / "labels.csv",)
    made = gate(load, "{files: [own.csv]}", "{evaluator: 'p:score', files: [labels.csv], floor: 1}")
    assert made.evaluator.files == (tmp_path / "own.csv",)
    text = """
        version: 1
        defaults: {recipes: [xnnpack-fp32], model: {accuracy: {evaluator: 'p:score', files: [all.csv], floor: 1}}}
        models: {a: {source: 'p:a'}}
    """
    assert load(text).zoo.accuracy_gate("a", "xnnpack-fp32").evaluator.files == (Path(tmp_path / "all.csv"),)


def test_recipes_inherit_it(load):
    """With `extends`, a bound can be changed by itself; `--set` reaches it."""
    text = """
        version: 1
        models: {a: {source: 'p:a', recipes: [mine]}}
        recipes:
          base: {specializations: [{target: portable}], accuracy: {evaluator: 'p:score', floor: 0.9}}
          mine: {extends: base, accuracy: {floor: 0.8}}
    """
    assert load(text).zoo.accuracy_gate("a", "mine").floor == 0.8
    changed = load(text, overrides=["recipes.mine.accuracy.floor=0.5"]).zoo.accuracy_gate("a", "mine")
    assert (changed.floor, changed.evaluator.builder) == (0.5, "p:score")


def test_a_bound_without_an_evaluator():
    """Nothing could be bounded: that is an error and not a gate that is silently left out."""
    with pytest.raises(ValueError, match="neither the recipe nor the model names an `evaluator`"):
        resolve_gate(Accuracy(floor=0.9), None)
    with pytest.raises(ValueError, match="neither the recipe nor the model names an `evaluator`"):
        resolve_gate(None, Accuracy(max_drop=0.1))


def test_a_recipe_that_bounds_nothing():
    """An evaluator in a recipe without any bound is half a gate."""
    with pytest.raises(ValueError, match="add `floor`, `max_drop` or both"):
        resolve_gate(Accuracy(evaluator="p:score"), None)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("{evaluator: score}", "evaluator: 'score' is neither 'package.module:callable'"),
        ("{max_drop: -0.1}", "max_drop: Input should be greater than or equal to 0 (found -0.1)"),
        ("{floor: '0.9'}", "floor: must be a number (found '0.9')"),
        ("{ceiling: 1}", "ceiling: unknown key 'ceiling'; known here: evaluator, files, floor, kwargs, max_drop"),
    ],
)
def test_mistakes_are_placed(written, problem, failure):
    """What is wrong with a gate is said with line, column and field."""
    message = str(failure(ZOO % ("null", written)))
    assert message.startswith("zoo.yaml:7:")
    assert f"recipes.gated.accuracy.{problem}" in message


def test_a_zoo_survives_json(load):
    """What a model does not write stays unwritten in JSON, so that it still is the recipe's."""
    zoo = load(ZOO % ("{floor: 0.5}", "{evaluator: 'p:score', floor: 0.9, max_drop: 0.1}")).zoo
    again = Zoo.model_validate_json(zoo.model_dump_json())
    assert again.accuracy_gate("a", "gated") == zoo.accuracy_gate("a", "gated")
    assert again.accuracy_gate("a", "gated").max_drop == 0.1
