"""Recipes that are shipped with pteforge: one YAML file each, read when a zoo names it."""

from __future__ import annotations

from importlib.resources import files

_ENDING = ".yaml"


def preset_names() -> tuple[str, ...]:
    """Names of all shipped recipes, sorted."""
    names = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING)))


def preset_text(name: str) -> str:
    """The YAML text of a shipped recipe, which must be one of `preset_names`."""
    return (files(__name__) / f"{name}{_ENDING}").read_text(encoding="utf-8")
