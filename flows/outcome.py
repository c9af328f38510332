"""The outcome of a run: per model, per recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..artifacts.records import Record
from ..errors import InputError, PteforgeError, StageError, StoreAway
from ..tasks.accuracy import AccuracyReport
from ..tasks.diagnosis import Finding
from ..tasks.figures import Figures
from ..tasks.layer_search import FoundLayers
from ..tasks.numerics import Ladder
from ..tasks.quantization import Quantization

KEPT_AS = "; the file is kept as "
"""Before the path of a file that missed its accuracy gate, at the end of the message."""

Status = Literal["made", "cached", "failed", "not applicable"]


@dataclass(frozen=True, slots=True)
class Failure(Record):
    """The step that failed, why, the end of its log, whether the user's input is the cause, and the ways out.

    `user_code` means that the user's code raised an exception.
    """

    step: str
    problem: str
    log_tail: str
    bad_input: bool
    findings: tuple[Finding, ...] = ()
    user_code: bool = False

    @classmethod
    def of(cls, step: str, error: Exception) -> Failure:
        problem = str(error) or type(error).__name__
        findings = error.findings if isinstance(error, PteforgeError) else ()
        log = error.log_tail if isinstance(error, StageError) else ""
        input_error = isinstance(error, InputError) and not isinstance(error, StoreAway)
        bad_input = error.bad_input if isinstance(error, StageError) else input_error
        return cls(step, problem, log, bad_input, findings, isinstance(error, StageError) and error.user_code)

    @property
    def unusable(self) -> bool:
        """Whether the input cannot be used: the exit code is 2. Where the user's code raises, its stage failed."""
        return self.bad_input and not self.user_code

    @property
    def diagnosed(self) -> bool:
        """Whether the findings name lines of the model, and so say more than message and log."""
        return any(finding.where for finding in self.findings)


@dataclass(frozen=True, slots=True)
class RecipeOutcome:
    """What a recipe produced for a model."""

    recipe: str
    status: Status  # `made` if any of its stages ran, `cached` if none did; `not applicable` if the recipe says so
    path: Path | None = None  # the file, if any: verified, unless the recipe does not ask for it
    data: Path | None = None  # its `.ptd`, if weights are in a sibling file
    size: int = 0  # bytes of both
    sha256: str = ""  # of the `.pte`
    figures: Figures | None = None
    seconds: float = 0.0  # of all its stages, including those found in the store
    failure: Failure | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)  # name of a specialization that the file lacks -> reason
    ladder: Ladder | None = None  # how far each program on the way to the file is from eager, if measured
    reason: str = ""  # why the recipe does not apply to the model
    accuracy: AccuracyReport | None = None  # scores of the file, if it has an accuracy gate
    rejected: Path | None = None  # the file that missed its accuracy gate
    assets: tuple[str, ...] = ()  # names of files that are delivered with it, such as a tokenizer
    search: FoundLayers | None = None  # the layers that stay in floating point, of a recipe that searches for them
    quantization: Mapping[str, Quantization] = field(default_factory=dict)  # by method, of those that PT2E quantized
    until: str = ""  # the stage after which it stopped, as it was asked to; empty where it did not

    @property
    def verified(self) -> bool:
        """Whether the file itself was run here, or a payload of it."""
        return bool(self.path) and (self.figures is None or self.figures.of_file)


def not_applicable(reasons: Mapping[str, str]) -> tuple[RecipeOutcome, ...]:
    """Outcomes of recipes that do not apply, from recipe name -> reason."""
    return tuple(RecipeOutcome(recipe, "not applicable", reason=reason) for recipe, reason in reasons.items())


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """All recipes of one model, with how many stages ran and how many were cached.

    Attributes:
        unwatched: what the stages that ran have read that is not watched: see `tasks.keys.inputs.Observed`.
    """

    model: str
    recipes: tuple[RecipeOutcome, ...]
    ran: int
    cached: int
    unwatched: tuple[str, ...] = ()

    @property
    def until(self) -> str:
        """The stage after which its recipes stopped, as they were asked to; empty where they made files."""
        return ", ".join(dict.fromkeys(recipe.until for recipe in self.recipes if recipe.until))

    @property
    def proof(self) -> str:
        """What is known of its files: all were run, or some were only made."""
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
    def recipes(self) -> Iterator[tuple[ModelOutcome, RecipeOutcome]]:
        return ((model, recipe) for model in self.models for recipe in model.recipes)

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(recipe.failure for _, recipe in self.recipes if recipe.failure)

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that were made, in order."""
        return tuple(recipe.path for _, recipe in self.recipes if recipe.path)

    @property
    def unverified(self) -> tuple[Path, ...]:
        """Those that this machine cannot run, of recipes that do not ask for it."""
        return tuple(recipe.path for _, recipe in self.recipes if recipe.path and not recipe.verified)

    @property
    def summary(self) -> str:
        """How many files were verified or, of a run that stops earlier, how far how many models came."""
        stopped = [model for model in self.models if model.until]
        if not stopped:
            unverified = f", {len(self.unverified)} made and not run" if self.unverified else ""
            return f"{len(self.files) - len(self.unverified)} files verified{unverified}"
        return f"{len(stopped)} model{'s' * (len(stopped) > 1)}: stages up to {stopped[0].until} done"

    @property
    def exit_code(self) -> int:
        """0: everything that applies was made and verified. 2: all failures are unusable input. 1: others."""
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
                model.model: {recipe.recipe: _recipe_json(recipe) for recipe in model.recipes} for model in self.models
            },
        }


def _recipe_json(outcome: RecipeOutcome) -> dict[str, Any]:
    numerics = {"numerics": outcome.ladder.to_json()} if outcome.ladder else {}
    if failure := outcome.failure:
        return {
            "status": outcome.status,
            **failure.to_json(),
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
        "assets": list(outcome.assets),
        "search": outcome.search and outcome.search.to_json(),
        "quantization": {method: reached.to_json() for method, reached in outcome.quantization.items()},
        "verified": outcome.verified,
        "not_run": dict(outcome.figures.not_run) if outcome.figures else {},
        "drawn_sqnr_db": outcome.figures and outcome.figures.drawn and outcome.figures.drawn.sqnr_db,
        "calibration": dict(outcome.figures.calibration) if outcome.figures else {},
        "notes": list(outcome.figures.notes) if outcome.figures else [],
        **numerics,
    }
