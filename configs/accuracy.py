"""Accuracy gates: what scores a produced file, and how low the score may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer

from .base import FrozenModel
from .sources import BuilderName, BuilderSource
from .verify_bounds import Number


class Accuracy(FrozenModel):
    """How good a produced file must be at its task.

    A recipe may say all of it or a part; what a model says counts instead, field by field. Where both together name an
    evaluator and a bound, files are scored.
    """

    evaluator: BuilderName | None = Field(
        default=None,
        description="package.module:callable, called as evaluator(predict, **kwargs); it returns the score, a number "
        "of which more is better. predict(*inputs, method='forward') runs the file.",
    )
    kwargs: dict[str, JsonValue] = Field(default={}, description="Keyword arguments of the evaluator.")
    files: tuple[Path, ...] = Field(
        default=(),
        description="Files that it reads, relative to the zoo file; files are scored again when they change.",
    )
    floor: Number | None = Field(default=None, description="Least score; null: none.")
    max_drop: Number | None = Field(
        default=None, ge=0, description="How far the score may be below that of the eager model; null: not compared."
    )

    @model_serializer(mode="wrap")
    def _only_what_is_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keeps `model_fields_set` across a round trip through JSON."""
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}

    def applied_to(self, other: Accuracy) -> Accuracy:
        """`other` with the fields replaced that are written here; another evaluator comes with its own arguments."""
        written = set(self.model_fields_set)
        if "evaluator" in written:
            written |= {"kwargs", "files"}
        return other.model_copy(update={name: getattr(self, name) for name in written})


class AccuracyGate(FrozenModel):
    """What holds for one file, recipe and model taken together.

    Attributes:
        evaluator: what scores it, with its arguments and files.
        floor: least score, if any.
        max_drop: how far the score may be below eager's, if it is compared.
    """

    evaluator: BuilderSource
    floor: float | None
    max_drop: float | None


def resolve_gate(recipe: Accuracy | None, model: Accuracy | None) -> AccuracyGate | None:
    """The gate for a file; None where it is not scored.

    Raises:
        ValueError: there is a bound and nothing to score with, or the recipe names an evaluator and nobody a bound.
    """
    both = model.applied_to(recipe or Accuracy()) if model else recipe or Accuracy()
    bounded = both.floor is not None or both.max_drop is not None
    if both.evaluator is None and bounded:
        raise ValueError("bounds accuracy, but neither the recipe nor the model names an `evaluator`")
    if both.evaluator and recipe and recipe.evaluator and not bounded:
        raise ValueError("names an evaluator, but no bound; add `floor`, `max_drop` or both")
    if both.evaluator is None or not bounded:
        return None
    source = BuilderSource(builder=both.evaluator, kwargs=both.kwargs, files=both.files)
    return AccuracyGate(evaluator=source, floor=both.floor, max_drop=both.max_drop)
