"""What became of a run: per model, per recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import InputError, StageError
from ..tasks.accuracy import AccuracyReport
from ..tasks.figures import Figures
from ..tasks.numerics import Ladder

Status = Literal["made", "cached", "failed", "not applicable"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something was not made.

    Attributes:
        step: name of the step that failed.
        problem: one line.
        log_tail: the last lines of the stage's process.
        bad_input: the cause is what the user gave.
    """

    step: str
    problem: str
    log_tail: str
    bad_input: bool

    @classmethod
    def of(cls, step: str, error: Exception) -> Failure:
        """From what a step raised."""
        staged = error if isinstance(error, StageError) else None
        problem = str(error) or type(error).__name__
        return cls(
            step=step,
            problem=problem,
            log_tail=staged.log_tail if staged else "",
            bad_input=staged.bad_input if staged else isinstance(error, InputError),
        )


@dataclass(frozen=True, slots=True)
class RecipeOutcome:
    """One file: made and verified, found in the store, failed, or not to be made at all.

    Attributes:
        recipe: name of the recipe.
        status: `made` if any of its stages ran, `cached` if none did; `not applicable` where the recipe says so.
        path: where the file is; None where it was not to be made, or failed.
        data: where its `.ptd` is, if weights are beside it.
        size: bytes, of both.
        sha256: of the `.pte`.
        figures: of its verification.
        seconds: of all its stages, those found in the store included.
        failure: where `status` is `failed`.
        left_out: specializations that the file does without: why, by name.
        ladder: how far each program on the way to the file is from eager, where that was found out.
        reason: why the recipe does not apply to the model.
        accuracy: scores of the file, where it has an accuracy gate.
        rejected: where the file is that missed its accuracy gate.
    """

    recipe: str
    status: Status
    path: Path | None = None
    data: Path | None = None
    size: int = 0
    sha256: str = ""
    figures: Figures | None = None
    seconds: float = 0.0
    failure: Failure | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    ladder: Ladder | None = None
    reason: str = ""
    accuracy: AccuracyReport | None = None
    rejected: Path | None = None


def not_applicable(reasons: Mapping[str, str]) -> tuple[RecipeOutcome, ...]:
    """Outcomes of recipes that do not apply, from their reasons by name."""
    return tuple(RecipeOutcome(recipe, "not applicable", reason=reason) for recipe, reason in reasons.items())


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """All recipes of one model.

    Attributes:
        model: name of the model.
        recipes: their outcomes.
        ran: how many stages ran.
        cached: how many were found.
    """

    model: str
    recipes: tuple[RecipeOutcome, ...]
    ran: int
    cached: int


@dataclass(frozen=True, slots=True)
class ZooOutcome:
    """A whole run."""

    zoo: str
    models: tuple[ModelOutcome, ...]
    seconds: float

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Every failed recipe's failure."""
        outcomes = [outcome for model in self.models for outcome in model.recipes]
        return tuple(outcome.failure for outcome in outcomes if outcome.failure)

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that is there and verified, in the order of models and recipes."""
        return tuple(outcome.path for model in self.models for outcome in model.recipes if outcome.path)

    @property
    def exit_code(self) -> int:
        """0: all that applies was made and verified. 2: all that failed is due to what the user gave. 1: otherwise."""
        if not self.failures:
            return 0
        return 2 if all(failure.bad_input for failure in self.failures) else 1

    def to_json(self) -> dict[str, Any]:
        """A JSON object, for ``--json``."""
        return {
            "zoo": self.zoo,
            "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code,
            "stages": {"ran": _total(self.models, "ran"), "cached": _total(self.models, "cached")},
            "models": {
                model.model: {outcome.recipe: _recipe_json(outcome) for outcome in model.recipes}
                for model in self.models
            },
        }


def _total(models: Sequence[ModelOutcome], count: Literal["ran", "cached"]) -> int:
    return sum(model.ran if count == "ran" else model.cached for model in models)


def _recipe_json(outcome: RecipeOutcome) -> dict[str, Any]:
    numerics = {"numerics": outcome.ladder.to_json()} if outcome.ladder else {}
    if failure := outcome.failure:
        return {
            "status": outcome.status,
            "step": failure.step,
            "problem": failure.problem,
            "bad_input": failure.bad_input,
            "log_tail": failure.log_tail,
            "rejected": outcome.rejected and str(outcome.rejected),
            **numerics,
        }
    if outcome.status == "not applicable":
        return {"status": outcome.status, "reason": outcome.reason}
    overall = outcome.figures.overall if outcome.figures else None
    return {
        "status": outcome.status,
        "file": outcome.path and str(outcome.path),
        "data": outcome.data and str(outcome.data),
        "size": outcome.size,
        "sha256": outcome.sha256,
        "seconds": round(outcome.seconds, 3),
        "max_abs_error": overall and overall.max_abs_error,
        "max_relative_error": overall and overall.max_relative_error,
        "sqnr_db": overall and overall.sqnr_db,
        "accuracy": outcome.accuracy and outcome.accuracy.to_json(),
        "left_out": dict(outcome.left_out),
        "not_run": dict(outcome.figures.not_run) if outcome.figures else {},
        **numerics,
    }
