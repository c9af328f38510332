"""The JSON Schema of zoo files takes what the loader takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from pteforge.configs import preset_names, zoo_schema
from pteforge.configs.extends import read_preset
from pteforge.configs.nodes import plain
from pteforge.configs.yaml_nodes import parse_yaml

STARTER = Path(__file__).parents[2] / "examples/zoo/starter.yaml"


@pytest.fixture(scope="module")
def validator():
    """A validator for the schema, which must itself be valid."""
    schema = json.loads(json.dumps(zoo_schema()))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _complaints(validator, text):
    return [error.json_path for error in validator.iter_errors(plain(parse_yaml(text, "f.yaml")))]


def test_the_starter_zoo_fits(validator):
    """The example that users start from is valid by the schema."""
    assert _complaints(validator, STARTER.read_text(encoding="utf-8")) == []


def test_shipped_recipes_fit(validator):
    """Shipped recipes could be written in a zoo as they are."""
    recipes = {name: plain(read_preset(name)) for name in preset_names()}
    assert list(validator.iter_errors({"version": 1, "recipes": recipes})) == []


GOOD = [
    "models: {a: {source: 'p:a'}}",
    "models: {a: {source: x.pt2, recipes: null, verify: null, dynamic_shapes: null}}",
    "models: {a: {source: {builder: 'p:a', kwargs: {a: [1, null, {b: x}]}, files: [w]}}}",
    "models: {a: {source: {program: x}, limits: {timeout: 10m, memory: 4GiB}}}",
    "models: {a: {source: 'p:a', limits: {timeout: 2.5, memory: 4096}}}",
    "models: {a: {source: 'p:a', dynamic_shapes: {f: [{0: {min: 1, max: 2}}, null, [{1: {min: 1, max: 2}}]]}}}",
    "models: {a: {source: 'p:a', verify: {min_sqnr_db: null, max_abs_error: 1e-3}}}",
    "recipes: {r: {extends: xnnpack-fp32, compile: {segment_alignment: 64}}}\nmodels: {a: {source: 'p:a'}}",
    (
        "recipes: {r: {specializations: [{target: t, options: {a: {b: 1}}, required: false}], output: {form: plain}}}\n"
        "models: {a: {source: 'p:a'}}"
    ),
    "defaults: {recipes: [portable-fp32], model: {seed: 3, source: {kwargs: {a: 1}}}}\nmodels: {a: {source: 'p:a'}}",
    (
        "name: n\npython_path: [a, b]\ninclude: []\nrecipes:\ndefaults: {model: , recipes: [portable-fp32]}\n"
        "models: {a: {source: 'p:a'}}"
    ),
]


@pytest.mark.parametrize("text", GOOD)
def test_what_loads_fits(load, validator, text):
    """Every spelling that the loader takes is valid by the schema."""
    text = (
        f"version: 1\n{text}\n"
        if "defaults:" in text
        else f"version: 1\ndefaults: {{recipes: [portable-fp32]}}\n{text}\n"
    )
    load(text)
    assert _complaints(validator, text) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("models: {a: {sed: 1}}", "$.models"),
        ("model: {}", "$"),
        ("models: {'a b': {}}", "$.models"),
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
    assert _complaints(validator, text) == [path]


def test_every_field_is_described():
    """Editors show a description for each key a user may write."""
    schema = zoo_schema()
    for name, part in [("top", schema), *schema["$defs"].items()]:
        for key, field in part.get("properties", {}).items():
            assert field.get("description") or "$ref" in field, f"{name}.{key}"


def test_no_key_is_let_through():
    """Every mapping with fixed keys refuses others."""
    schema = zoo_schema()
    for part in (schema, *schema["$defs"].values()):
        assert part.get("additionalProperties", False) is False or "properties" not in part
