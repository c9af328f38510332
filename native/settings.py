"""The settings that a partitioner passes to its backend, as one compile spec of canonical JSON."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from executorch.exir.backend.compile_spec_schema import CompileSpec
from pydantic import ValidationError, model_validator

from ..artifacts.digest import canonical_json
from ..configs.base import FrozenModel, describe_errors
from ..configs.recipe import Specialization
from ..errors import InputError, TargetError
from ..tasks.targets.base import Target
from ..tasks.targets.find import find_target

COMPILE_SPEC = "pteforge.native"  # key of the compile spec
FALLBACK = "portable"  # name of the last payload, which every container has

_log = logging.getLogger(__name__)


class Settings(FrozenModel):
    """The specializations of each partition, by preference, without the fallback."""

    specializations: tuple[Specialization, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Settings:
        names = [specialization.payload for specialization in self.specializations]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two specializations are called {twice[0]!r}; give one of them another `name`")
        if FALLBACK in names:
            raise ValueError(f"{FALLBACK!r} is the name of the fallback, which is always there: leave it out")
        return self


def to_compile_specs(settings: Settings) -> list[CompileSpec]:
    return [CompileSpec(COMPILE_SPEC, canonical_json(settings.model_dump(mode="json")))]


def from_compile_specs(specs: Sequence[CompileSpec]) -> Settings:
    """Inverse of `to_compile_specs`; raises InputError for other compile specs."""
    if unexpected := sorted({spec.key for spec in specs} - {COMPILE_SPEC}):
        raise InputError(f"unknown compile specs {unexpected}; NfatBackend knows only {COMPILE_SPEC!r}")
    if len(specs) != 1:
        raise InputError(f"{len(specs)} compile specs {COMPILE_SPEC!r}; there must be one: use NativePartitioner")
    try:
        return Settings.model_validate_json(bytes(specs[0].value))
    except ValidationError as error:
        raise InputError(f"compile spec {COMPILE_SPEC!r}: {describe_errors(error)}") from error


@dataclass(frozen=True, slots=True)
class Resolved:
    """A specialization and its target."""

    specialization: Specialization
    target: Target


def resolve(settings: Settings) -> list[Resolved]:
    """Finds the targets; leaves out, with a warning, those that are neither available here nor required.

    Raises TargetError if a target is unknown or delegates nothing, has invalid options, or is required but unavailable.
    """
    found = []
    for specialization in settings.specializations:
        target = find_target(specialization.target, dict(specialization.options))
        if not target.delegates:
            raise TargetError(f"target {target.name!r} delegates nothing: its payload would equal the fallback")
        reason = target.available()
        if reason is None:
            found.append(Resolved(specialization, target))
        elif specialization.required:
            raise TargetError(f"target {target.name!r} is not available here: {reason}")
        else:
            _log.warning("specialization %s is left out: not available here: %s", specialization.payload, reason)
    return found
