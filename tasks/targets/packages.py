"""Looking for packages without importing them."""

from __future__ import annotations

from importlib.util import find_spec


def missing_packages(*modules: str, extra: str) -> str | None:
    """Which top-level `modules` are not installed, and that an extra of pteforge brings them; None where all are."""
    missing = [module for module in modules if find_spec(module) is None]
    if not missing:
        return None
    return (
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: pip install 'pteforge[{extra}]'"
    )
