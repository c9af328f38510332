"""Finding targets by name in the entry-point group ``pteforge.targets``."""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import ValidationError

from ...configs.names import TARGET_SEPARATOR
from ...errors import TargetError
from .base import Target, TargetOptions
from .chain import chain_class

GROUP = "pteforge.targets"


def target_names() -> tuple[str, ...]:
    """Names of all installed targets, sorted."""
    return tuple(sorted(set(entry_points(group=GROUP).names)))


def link_names(name: str) -> tuple[str, ...]:
    """The targets that a name names: itself, or those that are joined by ``+``."""
    return tuple(name.split(TARGET_SEPARATOR))


def find_target(name: str, options: dict[str, Any] | None = None) -> Target:
    """The target `name` with its options checked.

    Raises:
        TargetError: no such target, several packages claim the name, it cannot be imported, or the options do not fit.
    """
    target = find_target_class(name)
    return target(_checked_options(f"options of target {name!r}", target.Options, options))


def find_quantizer_options(name: str, options: dict[str, Any] | None = None) -> TargetOptions:
    """Options of a target's quantizer, checked.

    Raises:
        TargetError: no such target, it has no quantizer, the options do not fit, or it is not available here.
    """
    target = find_target_class(name)
    kind = target.QuantizerOptions
    if kind is None:
        having = ", ".join(each for each in target_names() if find_target_class(each).QuantizerOptions) or "none"
        raise TargetError(f"target {name!r} has no quantizer; targets that have one: {having}")
    checked = _checked_options(f"quantizer options of target {name!r}", kind, options)
    if reason := target.available():
        raise TargetError(f"the quantizer of target {name!r} is not available here: {reason}")
    return checked


def _checked_options(what: str, kind: type[TargetOptions], options: dict[str, Any] | None) -> TargetOptions:
    try:
        return kind.model_validate(options or {})
    except ValidationError as error:
        places = {".".join(map(str, line["loc"])): line["msg"] for line in error.errors()}
        problems = "; ".join(f"{place}: {problem}" if place else problem for place, problem in places.items())
        known = ", ".join(sorted(kind.model_fields)) or "none"
        raise TargetError(f"{what}: {problems} (its options: {known})") from error


def find_target_class(name: str) -> type[Target]:
    """The class of the target `name`, or of several joined by ``+``; TargetError where it cannot be had."""
    if TARGET_SEPARATOR in name:
        return chain_class(tuple(find_target_class(each) for each in link_names(name)))
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
