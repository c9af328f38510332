"""The zoo that users start from."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest
from pteforge.configs import load_zoo

STARTER = Path(__file__).parents[2] / "examples/zoo/starter.yaml"


def test_it_has_six_models_with_two_recipes_each():
    """The starter zoo is what the README says: six models, each for portable kernels and XNNPACK."""
    zoo = load_zoo(STARTER).zoo
    assert zoo.name == "starter"
    assert list(zoo.models) == ["deep_autoencoder", "ds_cnn", "mobilenet_v1_025", "resnet8", "lstm", "sdpa"]
    assert sorted(zoo.recipes) == ["portable-fp32", "xnnpack-fp32"]
    for model in zoo.models:
        assert zoo.recipes_of(model) == ("portable-fp32", "xnnpack-fp32")


def test_bfloat16_has_bounds_of_its_own():
    """The model that computes in bfloat16 is not held to fp32's bounds; what else the recipe asks for stays."""
    zoo = load_zoo(STARTER).zoo
    assert zoo.verify_bounds("sdpa", "xnnpack-fp32").min_sqnr_db == 40
    assert zoo.verify_bounds("resnet8", "xnnpack-fp32").min_sqnr_db == 80
    assert zoo.verify_bounds("sdpa", "portable-fp32").drawn_inputs == 2


@pytest.mark.parametrize("model", ["deep_autoencoder", "ds_cnn", "mobilenet_v1_025", "resnet8", "lstm", "sdpa"])
def test_its_builders_exist(model):
    """Each builder is a class of the installed ExecuTorch with the two methods that such classes have."""
    module, _, name = load_zoo(STARTER).zoo.models[model].source.builder.partition(":")
    root = importlib.util.find_spec("executorch").submodule_search_locations[0]
    tree = ast.parse(Path(root, *module.split(".")[1:]).with_suffix(".py").read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    methods = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
    assert {"get_eager_model", "get_example_inputs"} <= methods


def test_its_comments_are_true(tmp_path):
    """What the comments show as possible loads, once the signs that make it a comment are taken away."""
    text = STARTER.read_text(encoding="utf-8")
    text = re.sub(
        r"^(\s*)# (python_path:|seed:|dynamic_shapes:|  forward:|    -|      -|recipes:)",
        r"\1\2",
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(r"^# (  xnnpack-aligned:|    extends|    compile)", r"\1", text, flags=re.MULTILINE)
    copy = tmp_path / "starter.yaml"
    copy.write_text(text, encoding="utf-8")
    zoo = load_zoo(copy).zoo
    shapes = zoo.models["lstm"].dynamic_shapes["forward"]
    assert [dim.name for shape in shapes for dim in shape.ranges()] == ["batch"] * 3
    assert zoo.recipes["xnnpack-aligned"].compile.segment_alignment == 4096
    assert zoo.recipes["xnnpack-aligned"].specializations[0].target == "xnnpack"
