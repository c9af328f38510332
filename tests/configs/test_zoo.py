"""What users rely on: the JSON Schema of zoo files, the presets, the public names and the example zoos."""

import json
import re
from pathlib import Path

import pteforge.configs
import pytest
from jsonschema import Draft202012Validator
from pteforge.configs import Recipe, load_zoo, preset_names, zoo_schema
from pteforge.configs.nodes import parse_yaml, plain
from pteforge.configs.recipe_lookup import load_preset, read_preset

ZOO = Path(__file__).parents[2] / "examples/zoo"
STARTER = ZOO / "starter.yaml"
GOLDEN = Path(__file__).with_name("golden.json")


@pytest.fixture(scope="module")
def validator():
    """A validator for the schema, which must itself be valid."""
    schema = json.loads(json.dumps(zoo_schema()))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _misfits(validator, text):
    return [error.json_path for error in validator.iter_errors(plain(parse_yaml(text, "f.yaml")))]


def _without_descriptions(schema):
    if isinstance(schema, dict):
        described = isinstance(schema.get("description"), str)
        return {k: _without_descriptions(v) for k, v in schema.items() if not (described and k == "description")}
    return [_without_descriptions(part) for part in schema] if isinstance(schema, list) else schema


def _contract():
    """What files may say, defaults, and presets apart from defaults, each as one line of JSON."""
    schema = _without_descriptions(zoo_schema())
    parts = {f"schema {name}": part for name, part in schema.pop("$defs").items()} | {"schema": schema}
    parts["defaults"] = Recipe(specializations=[{"target": "portable"}]).model_dump(mode="json")
    for name in preset_names():
        parts[f"preset {name}"] = load_preset(name).recipe.model_dump(mode="json", exclude_defaults=True)
    return {name: json.dumps(part, sort_keys=True) for name, part in parts.items()}


def test_the_schema_and_presets_change_on_purpose_only():
    """Users' files and the meaning of presets are a contract. After a wanted change, run this file as a script."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert {name: json.dumps(part, sort_keys=True) for name, part in golden.items()} == _contract()


def test_shipped_files_fit(validator):
    """The example that users start from is valid by the schema; shipped recipes could be written in a zoo."""
    assert _misfits(validator, STARTER.read_text(encoding="utf-8")) == []
    recipes = {name: plain(read_preset(name)) for name in preset_names()}
    assert list(validator.iter_errors({"version": 1, "recipes": recipes})) == []


def test_editors_offer_shipped_recipes():
    """Wherever a recipe is named, the schema lists the shipped ones; a zoo's own are accepted, too."""
    parts = zoo_schema()["$defs"]
    named = [parts[part]["properties"]["recipes"]["anyOf"][0]["items"] for part in ("ModelConfig", "DefaultsSection")]
    for schema in (*named, parts["Recipe"]["properties"]["extends"]):
        assert schema["anyOf"][0]["enum"] == list(preset_names())
        assert Draft202012Validator(schema).is_valid("my-own.recipe")
        assert not Draft202012Validator(schema).is_valid("no name")


@pytest.mark.parametrize(
    "text",
    [
        "models: {a: {source: 'p:a'}}",
        "models: {a: {source: x.pt2, recipes: null, verify: null, dynamic_shapes: null}}",
        "models: {a: {source: {builder: 'p:a', kwargs: {a: [1, null, {b: x}]}, files: [w]}}}",
        "models: {a: {source: {program: x}, limits: {timeout: 10m, memory: 4GiB}}}",
        "models: {a: {source: 'p:a', limits: {timeout: 2.5, memory: 4096}}}",
        "models: {a: {source: 'p:a', dynamic_shapes: {f: [{0: {min: 1, max: 2}}, null, [{1: {min: 1, max: 2}}]]}}}",
        "models: {a: {source: 'p:a', verify: {min_sqnr_db: null, max_abs_error: 1e-3}}}",
        "recipes: {r: {extends: xnnpack-fp32, compile: {segment_alignment: 64}}}",
        "recipes: {r: {specializations: [{target: t, options: {a: {b: 1}}, required: false}], output: {form: plain}}}",
        "defaults: {recipes: [portable-fp32], model: {seed: 3, source: {kwargs: {a: 1}}}}",
        "defaults: {recipes: [portable-fp32], model: {source: {program: x.pt2}}}",
        "name: n\npython_path: [a, b]\ninclude: []\nrecipes:\ndefaults: {model: , recipes: [portable-fp32]}",
    ],
)
def test_what_loads_fits(load, validator, text):
    """Every spelling that the loader takes is valid by the schema."""
    defaults = "" if "defaults:" in text else "defaults: {recipes: [portable-fp32]}\n"
    models = "" if "models:" in text else "models: {a: {source: 'p:a'}}\n"
    text = f"version: 1\n{defaults}{models}{text}\n"
    load(text)
    assert _misfits(validator, text) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("models: {a: {sed: 1}}", "$.models"),
        ("model: {}", "$"),
        ("models: {'a b': {}}", "$.models"),
        (f"models: {{{'a' * 129}: {{}}}}", "$.models"),
        ("models: {a: {seed: x}}", "$.models"),
        ("models: {a: {source: {build: x}}}", "$.models"),
        ("models: {a: {limits: {timeout: soon}}}", "$.models"),
        ("models: {a: {limits: {memory: 4Gi}}}", "$.models"),
        ("models: {a: {dynamic_shapes: {f: [7]}}}", "$.models"),
        ("models: {a: {recipes: []}}", "$.models"),
        ("recipes: {r: {extend: x}}", "$.recipes"),
        ("recipes: {r: {specializations: []}}", "$.recipes"),
        ("recipes: {r: {output: {form: thin}}}", "$.recipes"),
        ("defaults: {model: {recipes: [a]}}", "$.defaults"),
        ("include: x", "$.include"),
        ("version: 2", "$.version"),
    ],
)
def test_what_does_not_load_does_not_fit(failure, validator, text, path):
    """Mistakes that the loader reports are marked by the schema too, in the same section."""
    text = text if text.startswith("version") else f"version: 1\n{text}\n"
    failure(text)
    assert _misfits(validator, text) == [path]


def test_every_field_is_described():
    """Editors show a description for each key a user may write."""
    schema = zoo_schema()
    for name, part in [("top", schema), *schema["$defs"].items()]:
        for key, field in part.get("properties", {}).items():
            assert field.get("description") or "$ref" in field, f"{name}.{key}"


NAMES = """
Accuracy BuilderSource CompileOptions Dataset DimRange DynamicShapes EdgeOptions InputShape Limits LoadedZoo Locations
Metadata MethodCall MethodDefinition MethodOptions ModelConfig ModelDefinition Output ProgramSource Quantize
QuantizerChoice Recipe RunConfig Specialization VerifyBounds VerifyOverrides Zoo load_zoo preset_names zoo_schema
"""


def test_the_public_names():
    """The package exports exactly these names, and all of them exist."""
    assert pteforge.configs.__all__ == NAMES.split()
    assert all(hasattr(pteforge.configs, name) for name in pteforge.configs.__all__)


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
    """It has the starter zoo's models, and all shipped recipes that quantize, but for models they are not for."""
    quantized, starter = (load_zoo(ZOO / f"{name}.yaml").zoo for name in ("quantized", "starter"))
    assert list(quantized.models) == list(starter.models)
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


if __name__ == "__main__":
    lines = ",\n".join(f"{json.dumps(name)}: {part}" for name, part in sorted(_contract().items()))
    GOLDEN.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
