"""Digest of the code that a stage runs: pteforge's own, and a third party's target's."""

from __future__ import annotations

from functools import cache

from ...artifacts.digest import Digest, digest_json
from .code import PTEFORGE, Scope, read_module, walk_imports
from .search import FoundModule, ModuleSearch


@cache
def stage_code_digest(module: str) -> Digest:
    """Digest of a stage's (or target's) module and of what it imports from pteforge and from its own package.

    What it imports from elsewhere counts by version, see `versions`. The ``__init__`` of a pteforge package counts
    where something is imported from it, but not just because a module is within: those files define and re-export, no
    more, and a new version number is no reason to lower everything again. Remembered for the life of the process, as
    the loaded code is. Raises ValueError if there is no such module.
    """
    packages = frozenset({PTEFORGE, module.partition(".")[0]})
    scope = Scope(_has_file, packages, idle_parents=frozenset({PTEFORGE}), read=_read)
    closure = walk_imports([module], _search(), scope)
    if module not in closure.modules:
        raise ValueError(f"no module {module} to make a key of")
    return digest_json(closure.modules)


def _has_file(found: FoundModule) -> bool:
    return found.path is not None


# Stages have most of their modules in common.
_read = cache(read_module)
_search = cache(ModuleSearch)
