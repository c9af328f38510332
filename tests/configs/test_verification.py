"""Accuracy gates: merged from a recipe and a model."""

from pathlib import Path

import pytest
from pteforge.configs.verification import Accuracy, resolve_gate

ZOO = """
    version: 1
    models:
      a: {source: 'p:a', recipes: [plain, gated], accuracy: %s}
    recipes:
      plain: {specializations: [{target: portable}]}
      gated: {specializations: [{target: portable}], accuracy: %s}
"""
ALL = "{evaluator: 'p:score', kwargs: {n: 3}, files: [x.csv], floor: 0.9, max_drop: 0.1}"


def gate(load, model, recipe, name="gated"):
    """The gate of model `a` with a recipe, where the model's and recipe `gated`'s parts are given as YAML."""
    return load(ZOO % (model, recipe)).zoo.accuracy_gate("a", name)


@pytest.mark.parametrize(
    ("model", "recipe", "expected"),
    [
        ("null", ALL, ("p:score", {"n": 3}, 0.9, 0.1)),
        ("{evaluator: 'p:score'}", "{max_drop: 0.01}", ("p:score", {}, None, 0.01)),
        ("{floor: null}", ALL, ("p:score", {"n": 3}, None, 0.1)),
        ("{evaluator: 'p:other'}", ALL, ("p:other", {}, 0.9, 0.1)),
        ("{evaluator: null, floor: null, max_drop: null}", ALL, None),
    ],
)
def test_a_recipe_and_a_model_make_a_gate(load, model, recipe, expected):
    """Fields that the model writes replace the recipe's, null included; another evaluator has its own arguments."""
    made = gate(load, model, recipe)
    assert (made and (made.evaluator.builder, made.evaluator.kwargs, made.floor, made.max_drop)) == expected
    if made and made.evaluator.builder == "p:other":
        assert made.evaluator.files == ()
    assert gate(load, "{evaluator: 'p:score'}", recipe, "plain") is None


def test_files_lie_beside_the_zoo_file(load, tmp_path):
    """Relative paths are those from the zoo file, in recipes, in models, and in what all models get."""
    made = gate(load, "null", "{evaluator: 'p:score', files: [labels.csv], floor: 1}")
    assert made.evaluator.files == (tmp_path / "labels.csv",)
    made = gate(load, "{files: [own.csv]}", "{evaluator: 'p:score', files: [labels.csv], floor: 1}")
    assert made.evaluator.files == (tmp_path / "own.csv",)
    default = "{accuracy: {evaluator: 'p:score', files: [all.csv], floor: 1}}"
    text = f"version: 1\ndefaults: {{recipes: [xnnpack-fp32], model: {default}}}\nmodels: {{a: {{source: 'p:a'}}}}\n"
    assert load(text).zoo.accuracy_gate("a", "xnnpack-fp32").evaluator.files == (Path(tmp_path / "all.csv"),)


@pytest.mark.parametrize(
    ("recipe", "model", "problem"),
    [
        (Accuracy(floor=0.9), None, "neither the recipe nor the model names an `evaluator`"),
        (None, Accuracy(max_drop=0.1), "neither the recipe nor the model names an `evaluator`"),
        (Accuracy(evaluator="p:score"), None, "add `floor`, `max_drop` or both"),
    ],
)
def test_half_a_gate_is_an_error(recipe, model, problem):
    """A bound without an evaluator, or a recipe's evaluator without a bound, is not silently left out."""
    with pytest.raises(ValueError, match=problem):
        resolve_gate(recipe, model)
