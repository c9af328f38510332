"""Targets: one class per backend that a model can be specialized for. README.md says how to add one."""

from .base import Target, TargetOptions, TargetParams
from .find import find_target, target_names

__all__ = ["Target", "TargetOptions", "TargetParams", "find_target", "target_names"]
