"""Recipes from presets, from files that hold one, and from Python functions."""

import sys
from pathlib import Path

import pytest
from pteforge.configs.recipe_lookup import call_recipe, load_preset, load_recipe
from pteforge.errors import ConfigError

FUNCTIONS = """
from pteforge.configs import CompileOptions, Recipe, Specialization

def paged(alignment=4096):
    return Recipe(
        specializations=(Specialization(target="xnnpack"),), compile=CompileOptions(segment_alignment=alignment)
    )

def printing():
    print("hello")
    return paged()

def broken():
    raise KeyError("nothing")

def wrong():
    return {}
"""
ZOO = """
version: 1
models: {net: {source: "nets:build", recipes: [mine]}}
recipes: {mine: {function: "recipe_functions:paged", %s}}
"""


@pytest.fixture
def functions(tmp_path) -> Path:
    """A file of functions next to the files of the zoo."""
    path = tmp_path / "recipe_functions.py"
    path.write_text(FUNCTIONS)
    return path


@pytest.mark.usefixtures("functions")
def test_a_function_makes_the_recipe(load):
    """The function returns the recipe; other keys are merged over it, an extended recipe lies below it."""
    recipe = load(ZOO % "kwargs: {alignment: 256}, compile: {delegate_alignment: 32}").zoo.recipes["mine"]
    assert [specialization.target for specialization in recipe.specializations] == ["xnnpack"]
    assert (recipe.compile.segment_alignment, recipe.compile.delegate_alignment) == (256, 32)
    recipe = load(ZOO % "extends: xnnpack-int8-static").zoo.recipes["mine"]
    assert recipe.quantize == load_preset("xnnpack-int8-static").recipe.quantize
    assert recipe.compile.segment_alignment == 4096


def test_code_is_read_again(load, functions):
    """The module belongs to one reading: nothing stays loaded, so the next reading sees a change of the file."""
    assert load(ZOO % "").zoo.recipes["mine"].compile.segment_alignment == 4096
    assert "recipe_functions" not in sys.modules
    functions.write_text(FUNCTIONS.replace("4096", "65536"))
    assert load(ZOO % "").zoo.recipes["mine"].compile.segment_alignment == 65536


@pytest.mark.usefixtures("functions")
def test_a_recipe_file(tmp_path):
    """A file with one recipe finds its function next to it, and can extend the shipped recipe of its own name."""
    (tmp_path / "small.yaml").write_text("function: recipe_functions:paged\nkwargs: {alignment: 64}\n")
    loaded = load_recipe(tmp_path / "small.yaml")
    assert (loaded.name, loaded.recipe.compile.segment_alignment) == ("small", 64)
    (tmp_path / "xnnpack-fp32.yaml").write_text("extends: xnnpack-fp32\nverify: {min_sqnr_db: 100}\n")
    extended = load_recipe(tmp_path / "xnnpack-fp32.yaml").recipe
    assert extended.verify.min_sqnr_db == 100
    assert extended.specializations == load_preset("xnnpack-fp32").recipe.specializations


def test_an_unknown_name():
    """A name that is close to a shipped one is suggested."""
    for name, problem in (("xnnpack-fp31", "; did you mean 'xnnpack-fp32'"), ("../presets/portable-fp32", "")):
        with pytest.raises(ConfigError, match=f"there is no recipe '{name}'{problem}"):
            load_preset(name)


PAGED = "function: recipe_functions:paged\n"


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a recipe is a mapping"),
        ("- target: xnnpack\n", "a recipe is a mapping"),
        ("specializations: [{target: xnnpack}]\nedgy: {}\n", "mine.yaml:2:1: edgy: unknown key 'edgy'"),
        ("extends: nothing\n", "mine.yaml:1:1: extends: there is no recipe 'nothing'"),
        ("extends: mine\n", "recipes extend each other in a circle|there is no recipe 'mine'"),
        ("a: [\n", "mine.yaml:"),
        ("function: nowhere:paged", "mine.yaml:1:.*nowhere:paged cannot be imported: ModuleNotFoundError"),
        ("function: recipe_functions:page", "recipe_functions:page cannot be imported: AttributeError"),
        ("function: recipe_functions:broken", "mine.yaml:1:.*recipe_functions:broken failed: KeyError"),
        ("function: recipe_functions:wrong", "recipe_functions:wrong returned dict; it must return"),
        (PAGED + "kwargs: {size: 1}", "recipe_functions:paged failed: TypeError"),
        ("function: recipe_functions", "mine.yaml:1:.*: 'recipe_functions' is neither"),
        ("function: 3", "mine.yaml:1:.*function.*must be package.module:name of a function"),
        (PAGED + "kwargs: 3", "mine.yaml:2:.*kwargs.*must be a mapping"),
    ],
)
def test_mistakes_in_files(tmp_path, text, problem):
    """A mistake in a recipe, or in the function that makes it, is reported with file, line, column and field."""
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_recipe(tmp_path / "mine.yaml")


def test_functions_that_print(tmp_path, capsys):
    """What a recipe's function prints goes to stderr, so that stdout stays one JSON document."""
    (tmp_path / "printing_functions.py").write_text(FUNCTIONS)
    assert call_recipe("printing_functions:printing", {}, (tmp_path,)).specializations
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "hello\n")
