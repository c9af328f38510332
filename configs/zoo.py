"""Zoos: models, the recipes to lower them with, and how both are written in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from .accuracy import AccuracyGate, resolve_gate
from .base import FrozenModel
from .model import ModelConfig
from .names import Name, Names
from .recipe import Recipe
from .verify_bounds import VerifyBounds


class Zoo(FrozenModel):
    """A zoo with everything resolved: includes, defaults, presets and ``extends`` are worked in, paths are absolute."""

    version: Literal[1] = Field(description="Version of the file's format.")
    name: str = Field(min_length=1, description="Name of the zoo; left out: the file's name without its ending.")
    python_path: tuple[Path, ...] = Field(description="Folders that builders are imported from.")
    models: dict[Name, ModelConfig] = Field(description="The models by name.")
    recipes: dict[Name, Recipe] = Field(description="The recipes by name.")

    def recipes_of(self, model: str) -> tuple[str, ...]:
        """Names of the recipes that a model is lowered with."""
        return self.models[model].recipes or ()

    def verify_bounds(self, model: str, recipe: str) -> VerifyBounds:
        """The bounds for one file: the recipe's, with what the model replaces."""
        bounds, overrides = self.recipes[recipe].verify.bounds, self.models[model].verify
        return overrides.applied_to(bounds) if overrides else bounds

    def accuracy_gate(self, model: str, recipe: str) -> AccuracyGate | None:
        """What scores one file, and the bounds of its score; raises ValueError where only one of them is there."""
        return resolve_gate(self.recipes[recipe].accuracy, self.models[model].accuracy)


def _empty_if_null(section: object) -> object:
    return {} if section is None else section


Section = Annotated[dict[str, Any], BeforeValidator(_empty_if_null)]
"""A part of a file whose entries may all be commented out."""


class DefaultsSection(FrozenModel):
    """What holds for every model of the file and of the files it includes, unless something nearer says otherwise."""

    recipes: Names | None = Field(default=None, description="Recipes of the models that name none.")
    model: Section = Field(default={}, description="Fields of models, merged under what each model says.")


class ZooFile(FrozenModel):
    """The outline of a file as it is written. Models and recipes are checked once everything is put together."""

    version: Literal[1] = Field(description="Version of the file's format.")
    name: str | None = Field(
        default=None, min_length=1, description="Name of the zoo; left out: the file's name without its ending."
    )
    python_path: tuple[Path, ...] = Field(
        default=(Path(),),
        description="Folders that builders are imported from, relative to this file; left out: the file's own folder.",
    )
    include: tuple[Path, ...] = Field(
        default=(), description="Other zoo files, relative to this one, whose models and recipes are added."
    )
    defaults: Annotated[DefaultsSection, BeforeValidator(_empty_if_null)] = Field(
        default=DefaultsSection(), description="What holds for all models unless something nearer says otherwise."
    )
    models: Annotated[dict[Name, dict[str, Any]], BeforeValidator(_empty_if_null)] = Field(
        default={}, description="The models by name."
    )
    recipes: Annotated[dict[Name, dict[str, Any]], BeforeValidator(_empty_if_null)] = Field(
        default={}, description="Recipes of this zoo by name; pteforge ships more."
    )
