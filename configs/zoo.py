"""Zoos: models, the recipes to lower them with, and where their stages run; and the JSON Schema of zoo files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic.json_schema import models_json_schema

from ..errors import InputError
from .base import NAME_PATTERN, Bytes, FrozenModel, Name, Names, did_you_mean
from .model import ModelConfig
from .places import HOST, PlaceConfig
from .presets import preset_names
from .recipe import Recipe
from .verification import AccuracyGate, VerifyBounds, resolve_gate


class RunConfig(FrozenModel):
    """Settings of where and how stages run, which change neither files nor stage keys.

    Fields that `on` does not use are ignored, so that ``--on`` can choose between several that a zoo prepares.
    """

    on: Literal["local", "pool", "dask", "ray"] = Field(
        "local",
        description="`local`: worker processes of this machine. `pool`: models, as flow runs on a Prefect work "
        "pool. `dask`, `ray`: stages as tasks of a cluster.",
    )
    pool: str | None = Field(None, min_length=1, description="With `pool`: name of the work pool.")
    address: str | None = Field(
        None,
        min_length=1,
        examples=["tcp://scheduler:8786", "ray://head:10001"],
        description="With `dask` and `ray`: address of a running cluster; left out: a cluster on this machine, for "
        "this run only.",
    )
    workers: int | None = Field(None, ge=1, description="With `dask` and `ray`: local processes; left out: 2.")

    memory: Bytes | None = Field(
        None,
        examples=["12GiB"],
        description="Memory that stages may need together, as predicted; others wait. Processes of a cluster that the "
        "run starts share it, those of a cluster at `address` and runs on a work pool have it each. Left out: 80 % of "
        "the machine's or the container's.",
    )

    @property
    def processes(self) -> int | None:
        """How many processes run stages; None where that is the cluster's or the pool's to decide."""
        if self.on == "local":
            return 1
        return None if self.on == "pool" or self.address else self.workers or 2

    @field_validator("address")
    @classmethod
    def _has_scheme(cls, address: str | None) -> str | None:
        if address is not None and "://" not in address:
            raise ValueError(f"{address!r} has no scheme; write tcp://HOST:8786 for Dask, ray://HOST:10001 for Ray")
        return address

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.on == "pool" and self.pool is None:
            raise ValueError("'on: pool' needs the name of the work pool, such as `pool: forge`")
        if self.address and self.workers:
            raise ValueError("the cluster at 'address' has workers of its own; leave out one of 'address', 'workers'")
        return self


_NAME_OF_ZOO = "Name of the zoo; left out: the file's name without its suffix."


class PublishConfig(FrozenModel):
    """Releases of whole runs: their place, and the conditions for a channel to move to one."""

    url: str = Field(min_length=1, description="Folder (relative to this file) or URL, such as s3://bucket/prefix.")
    channel: Name = Field("latest", description="The channel that moves to a new release.")
    keep: int = Field(30, ge=1, description="How many releases to keep, besides those that channels name.")
    gates: str | None = Field(
        None,
        description="How much worse than the channel's present release a file may be; else the channel does not move.",
        examples=["growth=2%,sqnr=1dB,score=0.5%,delegation"],
    )
    sign: Path | None = Field(None, description="A private key to sign releases with; a path is relative to this file.")


class ToolchainConfig(FrozenModel):
    """Another environment to lower models with: its releases of torch and ExecuTorch, and a pteforge of its own."""

    python: Path | None = Field(
        None,
        description="Its Python, such as ~/venvs/executorch-1.6/bin/python; a path is relative to this file.",
        examples=["~/venvs/executorch-1.6/bin/python"],
    )
    pool: str | None = Field(
        None, description="Instead of `python`: a Prefect work pool whose workers are in that environment."
    )

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if (self.python is None) == (self.pool is None):
            raise ValueError("needs either `python` or `pool`")
        return self


_NULL_IS_EMPTY = BeforeValidator(lambda section: {} if section is None else section)
"""Sections of a file may be empty: their entries may all be commented out."""


class Zoo(FrozenModel):
    """A zoo after includes, defaults, presets and ``extends`` have been merged. Paths are absolute."""

    version: Literal[1] = Field(description="Version of the file's format.")
    name: str = Field(min_length=1, max_length=255, description=_NAME_OF_ZOO)
    python_path: tuple[Path, ...] = Field(description="Folders that builders and functions are imported from.")
    models: dict[Name, ModelConfig] = Field(description="The models by name.")
    recipes: dict[Name, Recipe] = Field(description="The recipes by name.")
    run: RunConfig = Field(RunConfig(), description="Where stages run.")
    publish: PublishConfig | None = Field(None, description="Where its files are released, if they are.")
    places: Annotated[dict[Name, PlaceConfig], _NULL_IS_EMPTY] = Field(
        {}, description="Runtimes that recipes may verify their files on, by name."
    )
    toolchains: Annotated[dict[Name, ToolchainConfig], _NULL_IS_EMPTY] = Field(
        {}, description="Other environments to lower models with, by name."
    )

    @field_validator("places")
    @classmethod
    def _host_is_taken(cls, value: dict[str, PlaceConfig]) -> dict[str, PlaceConfig]:
        if HOST in value:
            raise ValueError(f"{HOST!r} is the runtime of this machine's processes; give the place another name")
        return value

    def with_places(self, named: Sequence[str]) -> Zoo:
        """The zoo with required places, named or as `PlaceConfig.parse` reads them, that all recipes verify on."""
        places = dict(self.places)
        names = []
        for text in named:
            name = text
            if text in places:
                places[text] = places[text].model_copy(update={"required": True})
            elif text != HOST:
                if ":" not in text:
                    raise InputError(f"the zoo has no place {text!r}{did_you_mean(text, (HOST, *places))}")
                name, config = PlaceConfig.parse(text)
                if name in (HOST, *places):
                    raise InputError(f"{text}: another place is called {name!r}; give the place a name in the zoo file")
                places[name] = config
            names.append(name)
        recipes = {
            name: recipe.model_copy(update={"verify": recipe.verify.also_on(names)})
            for name, recipe in self.recipes.items()
        }
        return self.model_copy(update={"places": places, "recipes": recipes})

    def recipes_of(self, model: str) -> tuple[str, ...]:
        return self.models[model].recipes or ()

    def verify_bounds(self, model: str, recipe: str) -> VerifyBounds:
        """The bounds for one file: the recipe's, with those replaced that the model writes."""
        bounds, overrides = self.recipes[recipe].verify.bounds, self.models[model].verify
        return overrides.applied_to(bounds) if overrides else bounds

    def accuracy_gate(self, model: str, recipe: str) -> AccuracyGate | None:
        """The accuracy gate for one file, if any; raises ValueError if it has no evaluator or no bound."""
        chosen = self.recipes[recipe]
        return resolve_gate(chosen.accuracy, self.models[model].accuracy, chosen.bounds_of_search)


class DefaultsSection(FrozenModel):
    """Applies to every model of the file and of the files it includes, unless something nearer says otherwise."""

    recipes: Names | None = Field(None, description="Recipes of the models that name none.")
    model: Annotated[dict[str, Any], _NULL_IS_EMPTY] = Field(
        {}, description="Fields of models; those that a model writes are merged over them."
    )


class ZooFile(FrozenModel):
    """The outline of a file as it is written. Models and recipes are checked after everything has been merged."""

    version: Literal[1] = Field(description="Version of the file's format.")
    name: str | None = Field(None, min_length=1, max_length=255, description=_NAME_OF_ZOO)
    python_path: tuple[Path, ...] = Field(
        (Path(),),
        description="Folders to import builders and functions from, relative to this file; left out: its own.",
    )
    include: tuple[Path, ...] = Field((), description="Other zoo files to add, relative to this one.")
    defaults: Annotated[DefaultsSection, _NULL_IS_EMPTY] = Field(DefaultsSection(), description="Defaults of models.")
    models: Annotated[dict[Name, dict[str, Any]], _NULL_IS_EMPTY] = Field({}, description="The models by name.")
    recipes: Annotated[dict[Name, dict[str, Any]], _NULL_IS_EMPTY] = Field({}, description="The zoo's recipes by name.")
    run: RunConfig = Field(RunConfig(), description="Where stages run; that of included files does not count.")
    places: Annotated[dict[Name, PlaceConfig], _NULL_IS_EMPTY] = Field(
        {}, description="Runtimes that recipes may verify on, by name. Those of included files do not count."
    )
    toolchains: Annotated[dict[Name, ToolchainConfig], _NULL_IS_EMPTY] = Field(
        {}, description="Other environments to lower models with, by name. Those of included files do not count."
    )
    publish: PublishConfig | None = Field(
        None, description="Releases the files at the end of an export. That of an included file does not count."
    )


def zoo_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a zoo file as it is written, so that editors complete and check the YAML.

    It accepts everything that the loader accepts, short forms included. Only the loader checks whether a model or a
    recipe is complete, since defaults and ``extends`` may add what is missing.
    """
    _, schema = models_json_schema([(ZooFile, "validation"), (ModelConfig, "validation"), (Recipe, "validation")])
    parts: dict[str, Any] = schema["$defs"]
    sources = ("BuilderSource", "ProgramSource", "HuggingFaceSource", "TimmSource", "TorchvisionSource")
    for partial in ("ModelConfig", "Recipe", *sources):
        parts[partial].pop("required", None)
    parts["Recipe"]["properties"] |= _WRITTEN_IN_RECIPES
    parts["Recipe"]["properties"]["extends"] |= _recipe_name()
    for section in ("ModelConfig", "DefaultsSection"):
        parts[section]["properties"]["recipes"]["anyOf"][0]["items"] = _recipe_name()
    for bound in parts["VerifyOverrides"]["properties"].values():
        bound.pop("default")  # bounds that are left out are the recipe's
    source = parts["ModelConfig"]["properties"]["source"]
    examples = ["package.module:callable", "path/to/program.pt2", "hf:org/name"]
    source["anyOf"] = [{"type": "string", "examples": examples}, *source.pop("oneOf")]
    del source["title"]
    fields = {name: field for name, field in parts["ModelConfig"]["properties"].items() if name != "recipes"}
    parts["ModelDefaults"] = {**parts["ModelConfig"], "properties": fields, "title": "ModelDefaults"}
    outline = parts.pop("ZooFile")
    for section, entry in (("models", "ModelConfig"), ("recipes", "Recipe")):
        names = {"propertyNames": {"pattern": NAME_PATTERN}}
        entries = {"type": "object", **names, "additionalProperties": {"$ref": f"#/$defs/{entry}"}}
        _replace_section(outline, section, entries)
    _replace_section(parts["DefaultsSection"], "model", {"$ref": "#/$defs/ModelDefaults"})
    _replace_section(outline, "defaults", {"$ref": "#/$defs/DefaultsSection"})
    named = {"title": "pteforge zoo file", "description": "Models, and the recipes to lower them with."}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **outline, **named, "$defs": parts}


_WRITTEN_IN_RECIPES = {
    "extends": {
        "description": "Another recipe, of this zoo or shipped, that this one is merged over: mappings entry by entry, "
        "lists as a whole.",
    },
    "function": {
        "type": "string",
        "examples": ["package.module:function"],
        "description": "A Python function that returns a pteforge.configs.Recipe, which this one is merged over. "
        "Imported from python_path or from the environment, in the process that reads the file.",
    },
    "kwargs": {"type": "object", "description": "Keyword arguments of the function."},
}
"""Fields of recipes that are resolved when the file is loaded."""


def _recipe_name() -> dict[str, Any]:
    """The name of a recipe: editors offer those that are shipped, and accept any."""
    return {"anyOf": [{"type": "string", "enum": list(preset_names())}, {"type": "string", "pattern": NAME_PATTERN}]}


def _replace_section(part: dict[str, Any], name: str, schema: dict[str, Any]) -> None:
    properties = part["properties"]
    properties[name] = {"anyOf": [schema, {"type": "null"}], "description": properties[name]["description"]}
