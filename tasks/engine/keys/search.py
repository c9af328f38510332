"""Finds modules by dotted name, as the import system would, but without importing their parents."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.machinery import FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from .versions import distributions_of

SITE_FOLDERS = frozenset({"site-packages", "dist-packages"})
_STDLIB = tuple(
    path
    for folder in sorted({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
    for path in (Path(folder), Path(folder).resolve())
)


class Origin(Enum):
    """Whose code a module is."""

    LOCAL = "local"
    """The user's: its content counts."""
    INSTALLED = "installed"
    """A distribution's, in site-packages: its version counts."""
    STDLIB = "stdlib"
    """Python's own."""
    NAMESPACE = "namespace"
    """A folder without ``__init__``: no code at all."""


@dataclass(frozen=True, slots=True)
class FoundModule:
    """An importable module.

    Attributes:
        name: dotted.
        path: its file; None for namespace packages and for modules built into Python.
        locations: folders of its submodules; None for a module that is not a package.
    """

    name: str
    origin: Origin
    path: Path | None
    locations: tuple[str, ...] | None

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    @property
    def package(self) -> str:
        """The package that relative imports in the module start from; empty for a top-level module."""
        return self.name if self.locations is not None else self.name.rpartition(".")[0]


@dataclass(frozen=True)
class ModuleSearch:
    """Finds modules on `python_path`, then on ``sys.path``, then by finders of editable installs.

    Zipped modules are not found. Results are cached: a new search sees files that were added since.

    Attributes:
        python_path: folders that come first. A file there is local even if the folder is within site-packages.
        sys_path: replaces this process's present ``sys.path``.
    """

    python_path: tuple[Path, ...] = ()
    sys_path: tuple[str, ...] | None = None
    _found: dict[str, FoundModule | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def locate(self, dotted: str) -> Path | None:
        found = self.find(dotted)
        return found.path if found else None

    def find(self, dotted: str) -> FoundModule | None:
        if dotted not in self._found:
            self._found[dotted] = self._find(dotted)
        return self._found[dotted]

    def origin_of(self, path: Path, top: str) -> Origin:
        for folder in self.python_path:
            if folder.name not in SITE_FOLDERS and path.is_relative_to(folder):
                return Origin.LOCAL if SITE_FOLDERS.isdisjoint(path.relative_to(folder).parts) else Origin.INSTALLED
        if not SITE_FOLDERS.isdisjoint(path.parts):
            # A file that was put there by hand has no version, so its content has to count.
            return Origin.INSTALLED if distributions_of(top) else Origin.LOCAL
        return Origin.STDLIB if any(path.is_relative_to(folder) for folder in _STDLIB) else Origin.LOCAL

    def entries(self) -> list[str]:
        environment = sys.path if self.sys_path is None else self.sys_path
        # Files among them are zip archives.
        return [*map(str, self.python_path), *(entry for entry in environment if not Path(entry).is_file())]

    def _find(self, dotted: str) -> FoundModule | None:
        parent, _, leaf = dotted.rpartition(".")
        if not parent:
            if leaf in sys.builtin_module_names or FrozenImporter.find_spec(leaf):
                spec = FrozenImporter.find_spec(leaf)
                locations = spec.submodule_search_locations if spec else None
                return FoundModule(dotted, Origin.STDLIB, None, None if locations is None else tuple(locations))
            return self._from_spec(dotted, _spec(dotted, leaf, self.entries(), top=True))
        package = self.find(parent)
        if package is None or package.locations is None or not leaf:
            return None
        return self._from_spec(dotted, _spec(dotted, leaf, package.locations, top=False))

    def _from_spec(self, dotted: str, spec: ModuleSpec | None) -> FoundModule | None:
        if spec is None:
            return None
        # Listed now: a namespace's locations look at sys.path again each time they are read.
        locations = None if spec.submodule_search_locations is None else tuple(spec.submodule_search_locations)
        if spec.origin is None or not spec.has_location:
            return None if locations is None else FoundModule(dotted, Origin.NAMESPACE, None, locations)
        path = Path(spec.origin)
        return FoundModule(dotted, self.origin_of(path, dotted.partition(".")[0]), path, locations)


def _spec(dotted: str, leaf: str, entries: Sequence[str], *, top: bool) -> ModuleSpec | None:
    for finder in _finders():
        if finder is PathFinder:
            # Searched by the last part only: for a dotted name, a namespace's spec needs the parent in sys.modules.
            spec = PathFinder.find_spec(leaf, list(entries))
        else:
            spec = finder.find_spec(dotted, None if top else list(entries))
        if spec is not None:
            return spec
    return None


def _finders() -> Iterator[Any]:
    for finder in sys.meta_path:
        # Other finders may import or build something. Those of editable installs (setuptools, scikit-build-core, hatch,
        # meson-python) live in modules with this word in their names.
        if finder is PathFinder or "editable" in getattr(finder, "__module__", ""):
            yield finder
