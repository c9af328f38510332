"""JSON Schema of a zoo file as it is written, so that editors complete and check the YAML."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from .model import ModelConfig
from .names import NAME_PATTERN
from .recipe import Recipe
from .zoo import ZooFile

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def zoo_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a zoo file.

    It takes what the loader takes, short forms included. It is laxer in one way: whether a model or a recipe is
    complete is left to the loader, since defaults and ``extends`` may add what is missing.
    """
    _, schema = models_json_schema([(ZooFile, "validation"), (ModelConfig, "validation"), (Recipe, "validation")])
    parts: dict[str, Any] = schema["$defs"]
    for partial in ("ModelConfig", "Recipe", "BuilderSource", "ProgramSource"):
        parts[partial].pop("required", None)
    parts["Recipe"]["properties"]["extends"] = {
        "type": "string",
        "pattern": NAME_PATTERN,
        "description": "Another recipe, of this zoo or shipped, that this one is merged over: mappings entry by entry, "
        "lists as a whole.",
    }
    parts["Recipe"]["properties"]["function"] = {
        "type": "string",
        "examples": ["package.module:function"],
        "description": "A Python function that returns a pteforge.configs.Recipe, over which this one is merged. "
        "Imported from python_path or from the environment, in the process that reads the file.",
    }
    parts["Recipe"]["properties"]["kwargs"] = {
        "type": "object",
        "description": "Keyword arguments of the function.",
    }
    for bound in parts["VerifyOverrides"]["properties"].values():
        bound.pop("default")  # what is left out is the recipe's
    parts["ModelConfig"]["properties"]["source"] = _source(parts["ModelConfig"]["properties"]["source"])
    parts["ModelDefaults"] = _without(parts["ModelConfig"], "recipes") | {"title": "ModelDefaults"}
    for section, entry in (("models", "ModelConfig"), ("recipes", "Recipe")):
        _refer(parts["ZooFile"]["properties"], section, _named(entry))
    _refer(parts["DefaultsSection"]["properties"], "model", {"$ref": "#/$defs/ModelDefaults"})
    _refer(parts["ZooFile"]["properties"], "defaults", {"$ref": "#/$defs/DefaultsSection"})
    outline = parts.pop("ZooFile")
    named = {"title": "pteforge zoo file", "description": "Models, and the recipes to lower them with."}
    return {"$schema": _DIALECT, **outline, **named, "$defs": parts}


def _source(written: dict[str, Any]) -> dict[str, Any]:
    short = {"type": "string", "examples": ["package.module:callable", "path/to/program.pt2"]}
    either = [{"$ref": "#/$defs/BuilderSource"}, {"$ref": "#/$defs/ProgramSource"}]
    return {"anyOf": [short, *either], "description": written["description"]}


def _named(entry: str) -> dict[str, Any]:
    """A mapping of names to entries."""
    return {
        "type": "object",
        "propertyNames": {"pattern": NAME_PATTERN},
        "additionalProperties": {"$ref": f"#/$defs/{entry}"},
    }


def _refer(properties: dict[str, Any], name: str, schema: dict[str, Any]) -> None:
    """Puts a section's real schema in the place of the outline's; a section may also be left empty."""
    properties[name] = {"anyOf": [schema, {"type": "null"}], "description": properties[name]["description"]}


def _without(schema: dict[str, Any], name: str) -> dict[str, Any]:
    properties = {key: value for key, value in schema["properties"].items() if key != name}
    return {**schema, "properties": properties}
