"""What a name's `quantize_layers` makes of the recipes of its model, and what is wrong with one."""

import json

import pytest
from pteforge.configs.load import load_source, load_zoo
from pteforge.errors import InputError
from pteforge.flows.run.select import select_models

NAME = {"huggingface": "llama", "task": "text-generation", "config": {}}


def selected(folder, layers, *recipes, **fields):
    """The recipes of a model whose source has these fields."""
    source = {**NAME, "quantize_layers": layers, **fields}
    zoo = {"version": 1, "models": {"net": {"source": source, "recipes": recipes}}}
    (folder / "zoo.yaml").write_text(json.dumps(zoo))
    (model,) = select_models(load_zoo(folder / "zoo.yaml"))
    return [planned.recipe for planned in model.recipes]


def test_fields_of_a_name(tmp_path):
    """They replace those of recipes that quantize layers; other recipes stay as they are."""
    plain, quantizing = selected(tmp_path, {"group_size": 64}, "xnnpack-fp32", "xnnpack-llm-8da4w")
    assert plain.transforms == ()
    (transform,) = quantizing.transforms
    assert transform.params == {"weight_dtype": "int4", "weight_granularity": {"per_group": 64}}


@pytest.mark.parametrize(
    ("fields", "recipe", "problem"),
    [
        ({"group_size": 64}, "xnnpack-fp32", r"no recipe of the model goes by `quantize_layers` \(xnnpack-fp32\)"),
        ({"group_size": 64}, "xnnpack-llm-8da8w", "`group_size` is for int4 weights of linear layers"),
        ({"linear": "8da5w"}, "xnnpack-llm-8da4w", "8da4w"),
    ],
)
def test_fields_that_do_not_fit(tmp_path, fields, recipe, problem):
    """The error names the field of the model's source."""
    with pytest.raises(InputError, match=rf"models.net.source.quantize_layers.*: .*{problem}"):
        selected(tmp_path, fields, recipe)


@pytest.mark.parametrize(
    ("dtype", "recipe", "problem"),
    [
        ("bfloat16", "xnnpack-llm-8da4w", "XNNPACK takes no quantized layers in bfloat16"),
        ("float16", "xnnpack-int8-dynamic", "XNNPACK's quantizer takes float32 only"),
    ],
)
def test_dtypes_that_cannot_be_quantized(tmp_path, dtype, recipe, problem):
    """They are refused before any work; in floating point, XNNPACK takes them."""
    assert len(selected(tmp_path, None, "xnnpack-fp32", dtype=dtype)) == 1
    with pytest.raises(InputError, match=f"models.net.source.dtype: {problem}"):
        selected(tmp_path, None, recipe, dtype=dtype)


def test_the_source_of_a_named_model(tmp_path):
    """On the command line, `source` is that of the only model, whatever its name is."""
    (tmp_path / "net.v1").mkdir()
    changes = ["source.dtype=bfloat16", "source.quantize_layers.group_size=64"]
    zoo = load_source(tmp_path, "hf:./net.v1", ["xnnpack-llm-8da4w"], changes).zoo
    source = zoo.models["net.v1"].source
    assert (source.dtype, source.quantize_layers.group_size) == ("bfloat16", 64)
