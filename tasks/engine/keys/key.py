"""The key of one stage execution, and the digest of the code that the stage runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock
from typing import TypeAlias

from ....artifacts.digest import Digest, digest_json
from .code import PTEFORGE, Scope, only_carries, read_module, walk_imports
from .search import FoundModule, ModuleSearch

_LOCK = Lock()  # so that threads that need the same modules read and parse them once


def stage_code_digest(module: str) -> Digest:
    """Digest of a stage's (or target's) module and of what it imports from pteforge and from its own package.

    What it imports from elsewhere counts by version, see `versions`; `CARRIERS` do not count. The ``__init__`` of a
    pteforge package counts where something is imported from it, but not just because a module is within: those files
    define and re-export, no more, and a new version number is no reason to lower everything again. Remembered for the
    life of the process, as the loaded code is. Raises ValueError if there is no such module.
    """
    with _LOCK:
        return _code_digest(module)


@cache
def _code_digest(module: str) -> Digest:
    def decides(found: FoundModule) -> bool:
        return found.path is not None and not only_carries(found.name, module)

    packages = frozenset({PTEFORGE, module.partition(".")[0]})
    scope = Scope(decides, packages, idle_parents=frozenset({PTEFORGE}), read=_read)
    closure = walk_imports([module], _search(), scope)
    if module not in closure.modules:
        raise ValueError(f"no module {module} to make a key of")
    return digest_json(closure.modules)


# Stages have most of their modules in common.
_read = cache(read_module)
_search = cache(ModuleSearch)


JSON: TypeAlias = Mapping[str, "JSON"] | Sequence["JSON"] | str | int | float | bool | None
"""A JSON value."""


@dataclass(frozen=True)
class StageKey:
    """Everything that decides the output of a stage. Equal keys mean equal outputs.

    Attributes:
        code: digest of the code it runs (`stage_code_digest`).
        versions: by distribution, or by whatever else has one.
        inputs: identity of each input artifact, by role.
        params: everything that it reads besides its inputs.
    """

    stage: str
    code: Digest
    versions: Mapping[str, str]
    inputs: Mapping[str, Digest]
    params: JSON

    def fields(self) -> dict[str, JSON]:
        """The key as JSON: kept with its digest, so that two keys can be compared field by field."""
        return {
            "stage": self.stage,
            "code": self.code,
            "versions": dict(self.versions),
            "inputs": dict(self.inputs),
            "params": self.params,
        }

    def digest(self) -> Digest:
        return self._digest

    @cached_property
    def _digest(self) -> Digest:
        return digest_json(self.fields())
