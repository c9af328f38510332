"""What a partitioner tells its backend: one compile spec, canonical JSON."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from executorch.exir.backend.compile_spec_schema import CompileSpec
from pydantic import ValidationError, model_validator

from ..artifacts.digest import canonical_json
from ..configs.base import FrozenModel
from ..configs.recipe import Specialization
from ..errors import InputError, TargetError
from ..tasks.targets.base import Target
from ..tasks.targets.find import find_target

COMPILE_SPEC = "pteforge.native"
"""Key of the compile spec."""

FALLBACK = "portable"
"""Name of the payload that is always there, and last."""

_log = logging.getLogger(__name__)


class Settings(FrozenModel):
    """What each partition is lowered to.

    Attributes:
        specializations: by preference; the fallback is not among them.
    """

    specializations: tuple[Specialization, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Settings:
        names = [each.payload for each in self.specializations]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two specializations are called {twice[0]!r}; give one of them another `name`")
        if FALLBACK in names:
            raise ValueError(f"{FALLBACK!r} is what the fallback is called, which is always there: leave it out")
        return self


def to_compile_specs(settings: Settings) -> list[CompileSpec]:
    """The settings as a backend is given them; equal settings are equal bytes."""
    return [CompileSpec(COMPILE_SPEC, canonical_json(settings.model_dump(mode="json")))]


def from_compile_specs(specs: Sequence[CompileSpec]) -> Settings:
    """The settings in compile specs.

    Raises:
        InputError: there is another compile spec, none, several of ours, or one that is not what `to_compile_specs`
            gives.
    """
    if strangers := sorted({spec.key for spec in specs} - {COMPILE_SPEC}):
        raise InputError(f"unknown compile specs {strangers}; NfatBackend knows {COMPILE_SPEC!r} only")
    if len(specs) != 1:
        raise InputError(f"{len(specs)} compile specs {COMPILE_SPEC!r}; there must be one: use NativePartitioner")
    try:
        return Settings.model_validate_json(bytes(specs[0].value))
    except ValidationError as error:
        raise InputError(f"compile spec {COMPILE_SPEC!r}: {problems(error)}") from error


def problems(error: ValidationError) -> str:
    """What pydantic found, on one line."""
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}".removeprefix(": ") for each in error.errors())


@dataclass(frozen=True, slots=True)
class Resolved:
    """A specialization with the target that it names."""

    specialization: Specialization
    target: Target


def resolve(settings: Settings) -> tuple[Resolved, ...]:
    """Finds the targets. Those that are neither available here nor required are left out, which is logged.

    Raises:
        TargetError: there is no such target, its options do not fit, it delegates nothing, or it is required and not
            available here.
    """
    return tuple(_resolve(settings.specializations))


def _resolve(specializations: Sequence[Specialization]) -> Iterator[Resolved]:
    for specialization in specializations:
        target = find_target(specialization.target, dict(specialization.options))
        if not target.delegates:
            raise TargetError(f"target {target.name!r} delegates nothing: what it gives is what the fallback is")
        reason = target.available()
        if reason is None:
            yield Resolved(specialization, target)
        elif specialization.required:
            raise TargetError(f"target {target.name!r} is not available here: {reason}")
        else:
            _log.warning("specialization %s is left out: not available here: %s", specialization.payload, reason)
