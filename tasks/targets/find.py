"""Finding targets by name in the entry-point group ``pteforge.targets``."""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import ValidationError

from ...errors import TargetError
from .base import Target

GROUP = "pteforge.targets"


def target_names() -> tuple[str, ...]:
    """Names of all installed targets, sorted."""
    return tuple(sorted(set(entry_points(group=GROUP).names)))


def find_target(name: str, options: dict[str, Any] | None = None) -> Target:
    """The target `name` with its options checked.

    Raises:
        TargetError: no such target, several packages claim the name, it cannot be imported, or the options do not fit.
    """
    target = _load(name)
    try:
        return target(target.Options.model_validate(options or {}))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, line['loc']))}: {line['msg']}" for line in error.errors())
        known = ", ".join(sorted(target.Options.model_fields)) or "none"
        raise TargetError(f"options of target {name!r}: {problems} (its options: {known})") from error


def _load(name: str) -> type[Target]:
    found = entry_points(group=GROUP, name=name)
    if not found:
        names = target_names()
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise TargetError(f"unknown target {name!r}; {hint}installed targets: {', '.join(names)}")
    candidates = {entry.value: entry for entry in found}
    if len(candidates) > 1:
        raise TargetError(f"target {name!r} is claimed by several packages: {', '.join(sorted(candidates))}")
    (entry,) = candidates.values()
    return _checked(name, entry)


def _checked(name: str, entry: EntryPoint) -> type[Target]:
    try:
        loaded = entry.load()
    except Exception as error:
        raise TargetError(f"target {name!r} ({entry.value}) cannot be imported: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Target) and getattr(loaded, "name", None) == name):
        raise TargetError(f"entry point {entry.value} is not a Target named {name!r}")
    return loaded
