"""Recipes that Python functions make: called when the zoo is read, merged as YAML is, refused with a place."""

from __future__ import annotations

import sys

import pytest
from pteforge.configs import load_zoo
from pteforge.configs.recipe_file import load_preset, load_recipe
from pteforge.errors import ConfigError

FUNCTIONS = """
from pteforge.configs import CompileOptions, Recipe, Specialization

def paged(alignment=4096):
    return Recipe(
        specializations=(Specialization(target="xnnpack"),), compile=CompileOptions(segment_alignment=alignment)
    )

def broken():
    raise KeyError("nothing")

def wrong():
    return {}
"""
ZOO = """
version: 1
models:
  net: {source: "nets:build", recipes: [mine]}
recipes:
  mine:
"""


@pytest.fixture
def write(tmp_path):
    """Writes a zoo with one recipe."""
    (tmp_path / "recipe_functions.py").write_text(FUNCTIONS)

    def written(recipe):
        path = tmp_path / "zoo.yaml"
        path.write_text(ZOO + "".join(f"    {line}\n" for line in recipe))
        return path

    return written


def test_a_function_makes_the_recipe(write):
    """What the function returns is the recipe; what is written beside it is merged over."""
    path = write(["function: recipe_functions:paged", "kwargs: {alignment: 256}", "compile: {delegate_alignment: 32}"])
    recipe = load_zoo(path).zoo.recipes["mine"]
    assert [each.target for each in recipe.specializations] == ["xnnpack"]
    assert (recipe.compile.segment_alignment, recipe.compile.delegate_alignment) == (256, 32)


def test_other_recipes_extend_it(write):
    """A recipe of a function can be extended, and extend: a shipped one lies under what the function says."""
    path = write(["extends: xnnpack-int8-static", "function: recipe_functions:paged"])
    recipe = load_zoo(path).zoo.recipes["mine"]
    assert recipe.quantize == load_preset("xnnpack-int8-static").recipe.quantize
    assert recipe.compile.segment_alignment == 4096


def test_code_is_read_anew(write, tmp_path):
    """The module is of no other zoo: after a change of the file another reading sees it, and nothing stays loaded."""
    path = write(["function: recipe_functions:paged"])
    assert load_zoo(path).zoo.recipes["mine"].compile.segment_alignment == 4096
    assert "recipe_functions" not in sys.modules
    (tmp_path / "recipe_functions.py").write_text(FUNCTIONS.replace("4096", "65536"))
    assert load_zoo(path).zoo.recipes["mine"].compile.segment_alignment == 65536


@pytest.mark.parametrize(
    ("recipe", "problem"),
    [
        (["function: nowhere:paged"], "nowhere:paged cannot be imported: ModuleNotFoundError"),
        (["function: recipe_functions:page"], "recipe_functions:page cannot be imported: AttributeError"),
        (["function: recipe_functions:broken"], "recipe_functions:broken failed: KeyError"),
        (["function: recipe_functions:wrong"], "recipe_functions:wrong returned dict; it must return"),
        (["function: recipe_functions:paged", "kwargs: {size: 1}"], "recipe_functions:paged failed: TypeError"),
        (["function: recipe_functions"], "'recipe_functions' is neither"),
        (["function: 3"], "must be package.module:name of a function"),
        (["function: recipe_functions:paged", "kwargs: 3"], "must be a mapping"),
    ],
)
def test_mistakes(write, recipe, problem):
    """What is wrong with the function is said with file, line, column and field."""
    with pytest.raises(ConfigError, match=problem) as caught:
        load_zoo(write(recipe))
    assert caught.value.location.line in (7, 8)
    assert str(caught.value.field).startswith("recipes.mine.")


def test_a_recipe_file(tmp_path):
    """A file with one recipe finds its function beside it."""
    (tmp_path / "recipe_functions.py").write_text(FUNCTIONS)
    (tmp_path / "small.yaml").write_text("function: recipe_functions:paged\nkwargs: {alignment: 64}\n")
    loaded = load_recipe(tmp_path / "small.yaml")
    assert (loaded.name, loaded.recipe.compile.segment_alignment) == ("small", 64)
