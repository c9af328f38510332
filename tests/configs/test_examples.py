"""The example zoos: the one that users start from, and the one with every quantizing recipe."""

import re
from pathlib import Path

from pteforge.configs import load_zoo, preset_names

ZOO = Path(__file__).parents[2] / "examples/zoo"
STARTER = ZOO / "starter.yaml"


def test_the_starter_zoo():
    """It is what the README says: six models, each for portable kernels and XNNPACK."""
    zoo = load_zoo(STARTER).zoo
    assert zoo.name == "starter"
    assert list(zoo.models) == ["deep_autoencoder", "ds_cnn", "mobilenet_v1_025", "resnet8", "lstm", "sdpa"]
    assert sorted(zoo.recipes) == ["portable-fp32", "xnnpack-fp32"]
    assert all(zoo.recipes_of(model) == ("portable-fp32", "xnnpack-fp32") for model in zoo.models)
    assert zoo.verify_bounds("sdpa", "xnnpack-fp32").min_sqnr_db == 40
    assert zoo.verify_bounds("resnet8", "xnnpack-fp32").min_sqnr_db == 80
    assert zoo.verify_bounds("sdpa", "portable-fp32").drawn_inputs == 2


def test_the_starter_zoos_comments_are_true(tmp_path):
    """The alternatives in the comments load once they are uncommented."""
    text = STARTER.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^(\s*)# (python_path:|seed:|dynamic_shapes:|  forward:|    -|      -|recipes:)", r"\1\2", text)
    text = re.sub(r"(?m)^# (  xnnpack-aligned:|    extends|    compile)", r"\1", text)
    copy = tmp_path / "starter.yaml"
    copy.write_text(text, encoding="utf-8")
    zoo = load_zoo(copy).zoo
    shapes = zoo.models["lstm"].dynamic_shapes["forward"]
    assert [dim.name for shape in shapes for dim in shape.ranges()] == ["batch"] * 3
    assert zoo.recipes["xnnpack-aligned"].compile.segment_alignment == 4096
    assert zoo.recipes["xnnpack-aligned"].specializations[0].target == "xnnpack"


def test_the_quantized_zoo():
    """It is the starter zoo with all shipped recipes that quantize, unchanged but for the models they are not for."""
    quantized, starter = (load_zoo(ZOO / f"{name}.yaml").zoo for name in ("quantized", "starter"))
    sources = {name: model.source for name, model in starter.models.items()}
    assert {name: model.source for name, model in quantized.models.items()} == sources
    names = [name for name in preset_names() if name.startswith("xnnpack-int")]
    quantizing = sorted(name for name in names if "embedding" not in name)  # none of the models has one
    assert len(quantizing) == 5
    assert all(sorted(quantized.recipes_of(model)) == quantizing for model in quantized.models)
    for name, recipe in quantized.recipes.items():
        shipped = load_zoo(STARTER, [f"defaults.recipes=[{name}]"]).zoo.recipes[name]
        assert recipe.model_copy(update={"not_for": {}}) == shipped
    assert all(model.verify is None for model in quantized.models.values())
    recipes = [(model, quantized.recipes[name]) for model in quantized.models for name in quantized.recipes_of(model)]
    assert sum(bool(recipe.reason_against(model)) for model, recipe in recipes) == 9
