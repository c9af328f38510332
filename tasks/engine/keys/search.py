"""Finds modules by dotted name without importing their parents, versions of distributions, and vector instructions."""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.machinery import FrozenImporter, ModuleSpec, PathFinder
from importlib.metadata import PathDistribution
from pathlib import Path

from ....artifacts.digest import digest_bytes
from ...upstream.compat import WITHOUT
from ...upstream.patches import OFF
from .loaded import normalised

SITE_FOLDERS = frozenset({"site-packages", "dist-packages"})
_STDLIB = tuple(
    path
    for folder in sorted({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
    for path in (Path(folder), Path(folder).resolve())
)


class ModuleOrigin(Enum):
    """Whose code a module is."""

    LOCAL = "local"  # the user's: its content counts
    INSTALLED = "installed"  # a distribution's, in site-packages: its version counts
    STDLIB = "stdlib"  # Python's own
    NAMESPACE = "namespace"  # a folder without ``__init__``: no code at all


@dataclass(frozen=True, slots=True)
class FoundModule:
    """An importable module."""

    name: str  # dotted
    origin: ModuleOrigin
    path: Path | None  # its file; None for namespace packages and for modules built into Python
    locations: tuple[str, ...] | None  # folders of its submodules; None for a module that is not a package

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
    """

    # folders that come first. A file there is local even if the folder is within site-packages.
    python_path: tuple[Path, ...] = ()
    sys_path: tuple[str, ...] | None = None  # replaces this process's present ``sys.path``
    _found: dict[str, FoundModule | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def locate(self, dotted: str) -> Path | None:
        found = self.find(dotted)
        return found.path if found else None

    def find(self, dotted: str) -> FoundModule | None:
        if dotted not in self._found:
            self._found[dotted] = self._find(dotted)
        return self._found[dotted]

    def origin_of(self, path: Path, top: str) -> ModuleOrigin:
        for folder in self.python_path:
            if folder.name not in SITE_FOLDERS and path.is_relative_to(folder):
                is_local = SITE_FOLDERS.isdisjoint(path.relative_to(folder).parts)
                return ModuleOrigin.LOCAL if is_local else ModuleOrigin.INSTALLED
        if not SITE_FOLDERS.isdisjoint(path.parts):
            # A file that was put there by hand has no version, so its content has to count.
            return ModuleOrigin.INSTALLED if distributions_of(top) else ModuleOrigin.LOCAL
        return ModuleOrigin.STDLIB if any(path.is_relative_to(folder) for folder in _STDLIB) else ModuleOrigin.LOCAL

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
                return FoundModule(dotted, ModuleOrigin.STDLIB, None, None if locations is None else tuple(locations))
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
            return None if locations is None else FoundModule(dotted, ModuleOrigin.NAMESPACE, None, locations)
        path = Path(spec.origin)
        return FoundModule(dotted, self.origin_of(path, dotted.partition(".")[0]), path, locations)


def _spec(dotted: str, leaf: str, entries: Sequence[str], *, top: bool) -> ModuleSpec | None:
    spec: ModuleSpec | None = None
    for finder in sys.meta_path:
        if finder is PathFinder:
            # Searched by the last part only: for a dotted name, a namespace's spec needs the parent in sys.modules.
            spec = PathFinder.find_spec(leaf, list(entries))
        # Other finders may import or build something. Those of editable installs (setuptools, scikit-build-core, hatch,
        # meson-python) live in modules with this word in their names.
        elif "editable" in getattr(finder, "__module__", ""):
            spec = finder.find_spec(dotted, None if top else list(entries))
        if spec is not None:
            return spec
    return None


_OFTEN_BUILT_LOCALLY = ("torch", "executorch")  # from source, so that two builds may have the same version


def toolchain_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of the distributions of `names`, and what of upstream is left out on purpose."""
    changed = {name: os.environ[name] for name in (WITHOUT, OFF) if os.environ.get(name)}
    return {"python": platform.python_version(), **distribution_versions(names), **changed}


def distribution_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of the distributions that provide the top-level modules `names`, for example ``{"PyYAML": "6.0.3"}``.

    A digest of the files that their wheel installed follows the version of torch and executorch. A name may also be a
    distribution's own. Names that no installed distribution provides are left out. Versions are read once per process.
    """
    return dict(map(_named_version, sorted({folder for name in names for folder in distributions_of(name)})))


def distributions_of(top: str) -> tuple[Path, ...]:
    """Metadata folders of `top`'s distributions; ``importlib.metadata``'s own function takes a third of a second."""
    return _distributions_of(top, tuple(sys.path))


def host_capability() -> str:
    """The machine, and the vector instructions that torch chooses CPU kernels by, for example ``x86_64 avx512``.

    The same choice as in aten/src/ATen/native/DispatchStub.cpp, with the environment variable that overrides it.
    """
    chosen = os.environ.get("ATEN_CPU_CAPABILITY")
    return f"{platform.machine()} {chosen.lower() if chosen else _vector_instructions(_cpu_flags())}"


@cache
def _named_version(folder: Path) -> tuple[str, str]:
    distribution = PathDistribution(folder)
    name = distribution.metadata["Name"]
    build = f" ({_wheel_digest(folder)})" if name in _OFTEN_BUILT_LOCALLY else ""
    return name, distribution.version + build


@cache
def _distributions_of(top: str, path: tuple[str, ...]) -> tuple[Path, ...]:
    folders = _metadata_folders(path)
    namesakes = [folder for folder in folders if normalised(folder.name.partition("-")[0]) == normalised(top)]
    # Most distributions are named after their module. If its files confirm that, the others need not be read.
    providers = [folder for folder in namesakes if _provides(folder, top)]
    if not providers:
        providers = [folder for folder in folders if _provides(folder, top)]
    # The files of an editable install are not listed.
    return tuple(providers or namesakes)


@cache
def _metadata_folders(path: tuple[str, ...]) -> tuple[Path, ...]:
    folders: list[Path] = []
    for entry in dict.fromkeys(path):
        with suppress(OSError):
            folders += [path for path in sorted(Path(entry).iterdir()) if path.suffix in {".dist-info", ".egg-info"}]
    return tuple(folders)


def _provides(folder: Path, top: str) -> bool:
    """Whether a distribution has files of the module: ``top/…``, ``top.py`` or ``top.….so``."""
    record, older = _listings(folder)
    name = b"\n" + top.encode()
    # The listings of all packages are megabytes: finding bytes takes a hundredth of the expression's time.
    if name in record:
        return re.search(re.escape(name) + rb"(?:/|(?:\.[^/,\s]*)?\.(?:py|so|pyd),)", record) is not None
    return top in older


@cache
def _listings(folder: Path) -> tuple[bytes, frozenset[str]]:
    """A distribution's file list, each line after a newline, or its older list of top-level names, as Debian's have."""
    with suppress(OSError):
        return b"\n" + (folder / "RECORD").read_bytes(), frozenset()
    with suppress(OSError):
        return b"", frozenset((folder / "top_level.txt").read_text(encoding="utf-8").split())
    return b"", frozenset()


@cache
def _wheel_digest(folder: Path) -> str:
    """Short digest of the files in a wheel, from their digests in RECORD; the same however it was installed."""
    lines = _listings(folder)[0].splitlines()
    # Leaves out the installer's own files: scripts with the environment's path, byte code, metadata.
    shipped = [
        line for line in lines if not line.startswith(b"..") and not line.endswith(b",,") and b".dist-info/" not in line
    ]
    return digest_bytes(b"\n".join(sorted(shipped)))[:16]


@cache
def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    # "flags" on x86, "Features" on Arm.
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(flags, "").split())


_INSTRUCTIONS = {
    "avx512": {"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"},
    "avx2": {"avx2", "fma"},
    "sve": {"sve"},
}


def _vector_instructions(flags: frozenset[str]) -> str:
    return next((name for name, needed in _INSTRUCTIONS.items() if needed <= flags), "default")
