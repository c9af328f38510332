"""Digest of the code that a stage runs: pteforge's own, and a third party's target's."""

from __future__ import annotations

from functools import cache

from ...artifacts.digest import Digest, digest_json
from .code import PTEFORGE, walk_imports
from .search import FoundModule, ModuleSearch


@cache
def stage_code_digest(module: str) -> Digest:
    """Digest of a stage's (or target's) module and of what it imports from pteforge and from its own package.

    What a third party's target imports from elsewhere counts by version, see `versions`. Remembered for the life of
    the process, as the loaded code is. Raises ValueError if there is no such module.
    """
    packages = {PTEFORGE, module.partition(".")[0]}

    def is_ours(found: FoundModule) -> bool:
        return found.top in packages

    closure = walk_imports([module], ModuleSearch(), is_ours)
    if module not in closure.modules:
        raise ValueError(f"no module {module} to make a key of")
    return digest_json(closure.modules)
