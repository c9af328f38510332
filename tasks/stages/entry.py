"""What worker processes run, from JSON to JSON."""

from __future__ import annotations

from typing import Any

from ..call import StageCall, run_call
from . import operators


def run(argument: Any) -> Any:
    """Runs the `StageCall` that `argument` encodes; gives role name to artifact ref."""
    return {role: ref.to_json() for role, ref in run_call(StageCall.from_json(argument)).items()}


def check_operators(names: Any) -> Any:
    """Checks names of operators; raises TargetError for an unknown one."""
    operators.check_operators(names)
