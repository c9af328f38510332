"""Scores as a table on Prefect's pages."""

from __future__ import annotations

from typing import Any

from prefect.artifacts import create_table_artifact

from .artifact_key import artifact_key
from .outcome import ModelOutcome


def show_scores(outcome: ModelOutcome) -> None:
    """Adds a table of a model's scores to the current run, a row for each file or payload, if any was scored."""
    rows: list[dict[str, Any]] = [
        {
            "recipe": recipe.recipe,
            "payload": score.payload,
            "score": score.score,
            "eager": recipe.accuracy.eager,
            "floor": recipe.accuracy.floor,
            "max drop": recipe.accuracy.max_drop,
        }
        for recipe in outcome.recipes
        if recipe.accuracy
        for score in recipe.accuracy.file.scores
    ]
    if rows:
        key = artifact_key("accuracy", outcome.model)
        create_table_artifact(rows, key=key, description=f"Accuracy of {outcome.model}")
