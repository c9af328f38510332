"""This environment's torch and ExecuTorch: patches, and missing names. Run as a program, it prints that as JSON."""

from __future__ import annotations

import importlib
import json
import logging
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...artifacts.digest import digest_bytes, digest_json
from ...artifacts.files import replace_file
from ...artifacts.records import Record
from ...configs.base import did_you_mean
from ...errors import InputError, printable
from .. import upstream
from ..engine.keys.search import toolchain_versions
from ..upstream import TESTED, compat
from ..upstream.compat import PATHS, WITHOUT, find, is_missing
from ..upstream.patches import LIBRARY, NOT_TRIED, OFF, PATCHES, holds, is_off

_PACKAGES = ("torch", "executorch", "torchao", "transformers")
_SECONDS = 1800.0  # of importing everything, or lowering the smallest cases, on a busy machine
_PROBES = "pteforge.api.probes"


@dataclass(frozen=True, slots=True)
class PatchState:
    """Whether a patch of torch or ExecuTorch, or a limit of what GPU runtimes are given, can be applied."""

    name: str  # of the function that applies it, or the limit; docs/internals/upstream.md has more about each
    fault: str  # what happens without it
    lacks: tuple[str, ...] = ()  # what it needs, and the installed release lacks, as dotted names
    off: bool = False  # whether `OFF` names it
    # if its smallest case was to be tried: "needed", "needless", `NOT_TRIED`, or how that fails with the patch
    probe: str = ""

    @property
    def applies(self) -> bool:
        return not self.lacks and not self.off

    @property
    def fails(self) -> bool:
        """Whether the smallest case fails with the patch."""
        return self.probe not in ("", "needed", "needless", NOT_TRIED)

    @property
    def why(self) -> str:
        """The fault, and why it is not mended."""
        why = f"is turned off by {OFF}" if self.off else f"needs {', '.join(self.lacks)}"
        return f"{self.fault} ({self.name} {why})"


@dataclass(frozen=True, slots=True)
class Toolchain(Record):
    """What an environment lowers models with."""

    versions: dict[str, str]  # of packages, by name
    patches: tuple[PatchState, ...]  # those that are for its release of ExecuTorch, of packages that it has
    # what else pteforge uses and the installed release lacks, as dotted names, and the modules that need it
    lacks: dict[str, tuple[str, ...]]
    limits: tuple[PatchState, ...] = ()  # of Vulkan, some of which are WebGPU's, too

    @property
    def states(self) -> tuple[PatchState, ...]:
        """Patches and limits."""
        return (*self.patches, *self.limits)

    @property
    def well(self) -> bool:
        return not self.lacks and not any(not each.applies or each.fails for each in (*self.patches, *self.limits))

    @property
    def title(self) -> str:
        return ", ".join(f"{name} {self.versions[name]}" for name in _PACKAGES if name in self.versions)

    def changes_since(self, earlier: Toolchain) -> Iterator[str]:
        """What is mended here and was not with an earlier toolchain, and the other way round, a line each."""
        lacking, lacked = ({patch.name for patch in each.states if not patch.applies} for each in (self, earlier))
        for patch in self.states:
            if patch.name in lacking - lacked:
                yield f"not mended any more: {patch.why}"
            elif patch.name in lacked - lacking:
                yield f"mended from now on: {patch.fault} ({patch.name})"
        yield from self.probed

    @property
    def probed(self) -> Iterator[str]:
        """A line for each patch or limit whose smallest case shows that it is not needed, or does not help."""
        for patch in self.states:
            if patch.probe == "needless":
                yield f"not needed any more: {patch.name}, which avoids this: {patch.fault}"
            elif patch.fails:
                yield f"not mended by {patch.name}: {patch.fault}; {patch.probe}"

    @property
    def unmended(self) -> list[str]:
        """A line for each fault whose patch or limit is not applied."""
        return [f"not mended: {patch.why}" for patch in self.states if not patch.applies]

    def __str__(self) -> str:
        applied = f"{sum(patch.applies for patch in self.patches)} of {len(self.patches)} patches apply"
        missing = [f"{path} is missing, which these use: {', '.join(modules)}" for path, modules in self.lacks.items()]
        untried = sum(limit.probe == NOT_TRIED for limit in self.limits)
        limits = f"{sum(limit.applies for limit in self.limits)} limits of Vulkan apply" + (
            f", {untried} {NOT_TRIED}" if untried else ""
        )
        return "\n".join([self.title, applied, *[limits] * bool(self.limits), *self.unmended, *missing, *self.probed])


def toolchain_of(python: Path = Path(sys.executable)) -> Toolchain:
    """Asks the environment of a Python; raises InputError if pteforge cannot be imported there."""
    try:
        return Toolchain.from_json(_asked(python, __name__))
    except (ValueError, TypeError) as error:
        raise InputError(f"{python} cannot say what it lowers with: {error}") from error


def _asked(python: Path, module: str, *arguments: str) -> Any:
    """The JSON in the last line that a module prints in the environment of a Python."""
    command = [str(python), "-m", module, *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)  # noqa: S603 - as asked
        return json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
        said = "it prints nothing" if isinstance(error, LookupError) else str(getattr(error, "stderr", None) or error)
        said = printable(said.strip().rpartition("\n")[2])
        advice = "" if OFF in said else "; it should be the Python of an environment with pteforge"
        raise InputError(f"{python} cannot say what it lowers with: {said}{advice}") from error


@cache
def unmended(folder: Path) -> list[str]:
    """What pteforge cannot mend here, remembered in a folder; nothing for the newest release that it is tested with."""
    versions = toolchain_versions(_PACKAGES)
    if versions.get("executorch", "").partition(" ")[0] == TESTED[-1] and not {WITHOUT, OFF} & versions.keys():
        return []
    try:
        return _remembered(folder, versions, toolchain_of).unmended
    except InputError as error:
        return [str(error)]


def probe(toolchain: Toolchain, python: Path, folder: Path) -> Toolchain:
    """Lowers each patch's and limit's smallest case in the environment of a Python, once: results stay in a folder.

    Raises InputError if that cannot be done there.
    """

    def run() -> Toolchain:
        states = (*toolchain.patches, *toolchain.limits)
        cases = dict(_asked(python, _PROBES, *(state.name for state in states if state.applies)))

        def probed(state: PatchState) -> PatchState:
            patched, plain = cases.get(state.name, ("", ""))
            verdict = "needless" if patched == plain else "needed"
            return replace(state, probe=patched and (verdict if patched.startswith("made") else patched))

        patches, limits = (tuple(map(probed, each)) for each in (toolchain.patches, toolchain.limits))
        return replace(toolchain, patches=patches, limits=limits)

    return _remembered(folder, [toolchain.to_json(), _PROBES, os.environ.get(LIBRARY)], run)


def _remembered(folder: Path, versions: Any, ask: Callable[[], Toolchain]) -> Toolchain:
    """What a function returns, remembered in a folder for versions and the code of patches."""
    code = {path.name: digest_bytes(path.read_bytes()) for path in Path(upstream.__path__[0]).glob("*.py")}
    remembered = folder / f"{digest_json([versions, code])}.json"
    with suppress(OSError, ValueError, LookupError, TypeError):
        return Toolchain.decode(remembered.read_bytes())
    toolchain = ask()
    if any(state.fails for state in (*toolchain.patches, *toolchain.limits)):
        return toolchain  # maybe for want of memory, or of room on the disk
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(remembered, json.dumps(toolchain.to_json()).encode(), folder)
    return toolchain


def describe() -> Toolchain:
    """What this process lowers with; imports torch, ExecuTorch and all of their backends that can be imported."""
    from . import preload  # noqa: PLC0415 - imports every stage

    del preload
    for module in pkgutil.iter_modules(upstream.__path__, f"{upstream.__name__}."):
        with suppress(ImportError):  # of a package that is not installed
            importlib.import_module(module.name)
    patches = []
    for patch in PATCHES.values():
        if holds(patch.releases):
            with suppress(ImportError):
                patches.append(PatchState(patch.name, patch.fault, patch.missing(), is_off(patch.name)))
    of_patches = {path for patch in patches for path in patch.lacks}
    lacks = {path: modules for path, modules in _lacks() if path not in of_patches}
    versions = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    limits: list[PatchState] = []
    with suppress(ImportError):
        from ..upstream.vulkan import LIMITS  # noqa: PLC0415 - has torch

        limits += (
            PatchState(name, limit.why, off=is_off(name))
            for name, limit in LIMITS["vulkan"].items()
            if holds(limit.releases)
        )
    known = [*PATCHES, *(limit.name for limit in limits)]
    for name in filter(None, os.environ.get(OFF, "").split(",")):
        if name not in known:
            raise InputError(f"{OFF} has {name!r}, which is no patch and no limit{did_you_mean(name, known)}")
    return Toolchain(versions, tuple(patches), lacks, tuple(limits))


def _lacks() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names of `compat` that upstream lacks, as dotted names, and the imported modules that mention them."""
    package = upstream.__name__.partition(".")[0]
    files = {name: module.__file__ for name, module in sys.modules.items() if name.startswith(f"{package}.")}
    sources = {name: Path(file).read_text(encoding="utf-8") for name, file in sorted(files.items()) if file}
    users = {
        name.removeprefix(f"{package}."): source
        for name, source in sources.items()
        if name != compat.__name__ and re.search(r"\bcompat\b", source)
    }
    for name, path in PATHS.items():
        with suppress(ImportError):
            if is_missing(find(path)):
                mentions = re.compile(rf"\b{name}\b")
                yield path, tuple(user for user, source in users.items() if mentions.search(source))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    try:
        sys.stdout.write(json.dumps(describe().to_json()) + "\n")
    except InputError as error:
        sys.exit(str(error))
