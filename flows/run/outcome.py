"""The outcome of a run: per model, per recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...artifacts.runs import StageOutcome
from ...tasks.results.delivered import Delivered, Failure, Status

KEPT_AS = "; the file is kept as "
"""Precedes the path of a file that missed its accuracy gate, at the end of the message."""


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """All recipes of one model, and its stages."""

    model: str
    recipes: tuple[Delivered, ...]
    stages: tuple[StageOutcome, ...] = ()
    unwatched: tuple[str, ...] = ()  # inputs of its stages that are not watched: `tasks.engine.keys.inputs.Observed`

    @property
    def status(self) -> Status:
        """``failed`` if any recipe is, else ``made`` if any stage ran, else ``cached``."""
        statuses = {recipe.status for recipe in self.recipes}
        order: tuple[Status, ...] = ("failed", "made", "cached")
        return next((status for status in order if status in statuses), "not applicable")

    @property
    def ran(self) -> int:
        return sum(stage.status == "ran" for stage in self.stages)

    @property
    def cached(self) -> int:
        return sum(stage.status == "cached" for stage in self.stages)

    @property
    def until(self) -> str:
        """The stage after which `--until` stopped its recipes; empty if they made files."""
        return ", ".join(dict.fromkeys(recipe.until for recipe in self.recipes if recipe.until))

    @property
    def proof(self) -> str:
        """``verified`` if all of its files were run, else ``made``."""
        return "verified" if all(recipe.verified for recipe in self.recipes if recipe.path) else "made"


@dataclass(frozen=True, slots=True)
class ZooOutcome:
    """A whole run."""

    zoo: str
    models: tuple[ModelOutcome, ...]
    seconds: float

    @property
    def ran(self) -> int:
        return sum(model.ran for model in self.models)

    @property
    def cached(self) -> int:
        return sum(model.cached for model in self.models)

    @property
    def recipes(self) -> Iterator[Delivered]:
        return (recipe for model in self.models for recipe in model.recipes)

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(recipe.failure for recipe in self.recipes if recipe.failure)

    @property
    def files(self) -> tuple[Path, ...]:
        """Paths of the files that were made."""
        return tuple(recipe.path for recipe in self.recipes if recipe.path)

    @property
    def unverified(self) -> tuple[Path, ...]:
        """Files that this machine cannot run, of recipes that do not require it."""
        return tuple(recipe.path for recipe in self.recipes if recipe.path and not recipe.verified)

    @property
    def summary(self) -> str:
        """How many files are verified; with `--until`, the last stage and how many models reached it."""
        if stopped := [model for model in self.models if model.until]:
            return f"{len(stopped)} model{'s' * (len(stopped) > 1)}: stages up to {stopped[0].until} done"
        unverified = f", {len(self.unverified)} made and not run" if self.unverified else ""
        verified = len(self.files) - len(self.unverified)
        return f"{verified} file{'s' * (verified != 1)} verified{unverified}"

    @property
    def exit_code(self) -> int:
        """0 if everything applicable was made and verified, 2 if all failures are unusable input, else 1."""
        if not self.failures:
            return 0
        return 2 if all(failure.unusable for failure in self.failures) else 1

    def to_json(self) -> dict[str, Any]:
        return {
            "zoo": self.zoo,
            "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code,
            "stages": {"ran": self.ran, "cached": self.cached},
            "unwatched": {model.model: list(model.unwatched) for model in self.models if model.unwatched},
            "models": {
                model.model: {recipe.recipe: recipe.described() for recipe in model.recipes} for model in self.models
            },
        }
