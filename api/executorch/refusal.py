"""What to say of a field that has no translation."""

from __future__ import annotations

from ...errors import ConfigError


def untranslatable(field: str, problem: str) -> ConfigError:
    """The error for a field of an ExportRecipe, named as ExecuTorch names it."""
    return ConfigError(f"cannot be said in a pteforge recipe: {problem}", field=f"ExportRecipe.{field}")
