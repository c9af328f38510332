"""Recipes outside of a zoo: shipped ones by name, and files that hold one."""

from __future__ import annotations

import pytest
from pteforge.configs import preset_names
from pteforge.configs.recipe_file import load_preset, load_recipe
from pteforge.errors import ConfigError


@pytest.mark.parametrize("name", preset_names())
def test_shipped_recipes(name):
    """Every shipped recipe can be had by its name."""
    loaded = load_preset(name)
    assert loaded.name == name
    assert loaded.recipe.specializations


def test_an_unknown_name():
    """A name that is close to a shipped one is suggested."""
    with pytest.raises(ConfigError, match="there is no recipe 'xnnpack-fp31'; did you mean 'xnnpack-fp32'"):
        load_preset("xnnpack-fp31")


def test_a_file_may_be_called_as_what_it_extends(tmp_path):
    """A file that is named after a shipped recipe can extend that one."""
    path = tmp_path / "xnnpack-fp32.yaml"
    path.write_text("extends: xnnpack-fp32\nverify: {min_sqnr_db: 100}\n")
    loaded = load_recipe(path)
    assert loaded.recipe.verify.min_sqnr_db == 100
    assert loaded.recipe.specializations == load_preset("xnnpack-fp32").recipe.specializations


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a recipe is a mapping"),
        ("- target: xnnpack\n", "a recipe is a mapping"),
        ("specializations: [{target: xnnpack}]\nedgy: {}\n", r"mine.yaml:2:1: edgy: unknown key 'edgy'"),
        ("extends: nothing\n", r"mine.yaml:1:1: extends: there is no recipe 'nothing'"),
        ("extends: mine\n", "recipes extend each other in a circle|there is no recipe 'mine'"),
        ("a: [\n", r"mine.yaml:"),
    ],
)
def test_mistakes(tmp_path, text, problem):
    """What is wrong is said with file, line, column and field."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_recipe(path)
