"""What worker processes run, from JSON to JSON."""

from __future__ import annotations

from typing import Any

from ..call import StageCall, run_call
from . import operators, torchao_values


def run(argument: Any) -> Any:
    """Runs the `StageCall` that `argument` encodes; gives role name to artifact ref."""
    return {role: ref.to_json() for role, ref in run_call(StageCall.from_json(argument)).items()}


def check_operators(names: Any) -> Any:
    """Checks pairs of an operator's name and the field that has it; raises TargetError for an unknown one."""
    operators.check_operators(names)


def check_transforms(transforms: Any) -> Any:
    """Makes torchao's configs of pairs of a class's name and its fields; raises TargetError for one that cannot be."""
    for name, fields in transforms:
        torchao_values.make_config(name, fields)
