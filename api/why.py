"""What became of stages, in words."""

from __future__ import annotations

from collections.abc import Iterable

from ..artifacts.runs import StageOutcome


def told(stages: Iterable[StageOutcome]) -> str:
    """A line for each: whether it ran, and if so which fields of its key had changed since it last did."""
    return "\n".join(map(_line, stages))


def _line(stage: StageOutcome) -> str:
    changed = ", ".join(change.field for change in stage.telling)
    reason = f"changed: {changed}" if changed else stage.message
    return f"{stage.status:<7} {stage.step:<40} {reason}".rstrip()
