"""The code that this process has loaded, for keys that have the code that ran: pteforge's, packages', and the user's.

Files of pteforge and the folders of packages' metadata are looked at when the process starts. Keys have pteforge's
sources as they were then, or cannot be made. A module that is loaded later, and the sources of the user's modules, are
compared with the files at a stage's end. So what changes before they are loaded ends in an error and not in a record.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from ....errors import CodeChanged  # nothing more of ours, since what is loaded before this module is not looked at

FileState = str
"""Time of the last change, size and inode. Linking a file elsewhere, as uv does, changes none of them."""

_PACKAGE = f"{Path(__file__).parents[3]}{os.sep}"
_FOLDERS = ("artifacts", "configs", "evaluators", "formats", "native", "runtime", "tasks")
"""Folders whose code decides what a model's stages are and do, and what is recorded of them."""


def file_state(path: str | Path) -> FileState | None:
    """What changes with a file's content; None where there is no file."""
    with suppress(OSError):
        status = os.stat(path)  # noqa: PTH116 - many files, fast
        return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"
    return None


def _own_files() -> dict[str, FileState | None]:
    """States of pteforge's Python files; takes half a millisecond."""
    return {path: file_state(path) for name in _FOLDERS for path in _python_files(f"{_PACKAGE}{name}")}


def _python_files(folder: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.path
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _python_files(entry.path)


def _metadata_folders() -> Iterator[str]:
    for folder in dict.fromkeys(sys.path[1:]):  # the first one is the program's, with whatever else is in it
        with suppress(OSError), os.scandir(folder) as entries:
            yield from (entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info")))


_own_at_start = _own_files()
_metadata_at_start = {path: file_state(path) for path in _metadata_folders()}
_loaded_early: frozenset[str] = frozenset()  # modules that were loaded when pteforge's files were last as at the start
_stale: list[str] = []  # files that have changed before all was loaded that has to be


@cache
def code_at_start() -> str:
    """A digest of what pteforge's files were when this process started: equal where the same was loaded."""
    import hashlib  # noqa: PLC0415 - what every import of pteforge waits for is short

    return hashlib.sha256(repr(sorted(_own_at_start.items())).encode()).hexdigest()


def changed_files() -> list[str]:
    """Returns pteforge's files that have changed since this process started, relative to the package."""
    now = _own_files()
    changed = {path for path, _ in now.items() ^ _own_at_start.items()}
    return sorted(path.removeprefix(_PACKAGE) for path in changed)


def changed_code(files: Iterable[str]) -> CodeChanged:
    """The error for code of pteforge's that is not what a key would say."""
    return CodeChanged(
        f"pteforge's code has changed since this process loaded it ({_listed(files)}), so nothing more is recorded; "
        "run again, and restart workers that live longer than a run"
    )


def _listed(names: Iterable[str]) -> str:
    first, *more = sorted(names)
    return f"{first} and {len(more)} more" if more else first


def note_loaded(start: str | None = None) -> str:
    """Takes what is loaded by now as loaded from unchanged files; returns `code_at_start`, or zeros if files changed.

    Stages fail here from now on if a file has changed meanwhile, or since `start`, another process's `code_at_start`.
    """
    global _loaded_early  # noqa: PLW0603 - once in the life of a process, or of the one that it is forked from
    _loaded_early = frozenset(sys.modules)
    _stale[:] = changed_files()
    if start not in (None, code_at_start()):
        _stale.append("before this process")
    return "0" * len(code_at_start()) if _stale else code_at_start()


@cache
def read_own_sources() -> dict[str, bytes | None]:
    """Reads pteforge's sources once and early; None for those that have changed since this process started."""
    global _loaded_early  # noqa: PLW0603 - as above
    _loaded_early = _loaded_early or frozenset(sys.modules)
    return {path: _unchanged(path, state) for path, state in _own_at_start.items()}


def _unchanged(path: str, state: FileState | None) -> bytes | None:
    with suppress(OSError):
        content = Path(path).read_bytes()
        return content if file_state(path) == state else None
    return None


def source(path: Path) -> bytes:
    """A module's source; for pteforge's, as it was at this process's start, or CodeChanged if that is lost."""
    name = str(path)
    if not name.startswith(tuple(f"{_PACKAGE}{folder}{os.sep}" for folder in _FOLDERS)) or path.suffix != ".py":
        return path.read_bytes()
    content = read_own_sources().get(name)
    if content is None:
        raise changed_code([name.removeprefix(_PACKAGE)])
    return content


def own_sources() -> dict[str, bytes]:
    """Returns pteforge's sources by path below the package; raises CodeChanged if one has changed since the start."""
    sources = read_own_sources()
    if changed := [path.removeprefix(_PACKAGE) for path, content in sources.items() if content is None]:
        raise changed_code(changed)
    return {path.removeprefix(_PACKAGE): content for path, content in sources.items() if content is not None}


def check_own_modules(carries: Callable[[str], bool]) -> None:
    """Raises CodeChanged if a stage may have run code of pteforge's that neither its key has nor `carries` accepts."""
    top = f"{__name__.partition('.')[0]}."
    late = [name for name in set(sys.modules) - _loaded_early if name.startswith(top) and not carries(name)]
    files = [path for name in late if (path := module_file(name)) in _own_at_start]
    changed = [path.removeprefix(_PACKAGE) for path in files if file_state(path) != _own_at_start[path]]
    if _stale or changed:
        raise changed_code(_stale or changed)


def check_distributions(names: Iterable[str]) -> None:
    """Raises CodeChanged if one of these distributions was replaced since this process started."""
    wanted = {normalised(name) for name in names}
    for path, state in _metadata_at_start.items():
        name = Path(path).name.removesuffix(".dist-info").removesuffix(".egg-info").partition("-")[0]
        if normalised(name) in wanted and file_state(path) != state:
            raise CodeChanged(
                f"the package {name} was changed since this process started, so nothing more is recorded; run again, "
                "and restart workers that live longer than a run"
            )


def normalised(name: str) -> str:
    """https://packaging.python.org/specifications/name-normalization/."""
    return re.sub(r"[-_.]+", "-", name).lower()


def module_file(name: str) -> str:
    """The source of a loaded module; empty where it has none."""
    try:
        # Not getattr: that would load a lazily loaded module.
        file = object.__getattribute__(sys.modules[name], "__dict__").get("__file__")
    except (AttributeError, KeyError):
        return ""  # sys.modules may hold anything
    return os.path.abspath(file) if isinstance(file, str) else ""  # noqa: PTH100 - without following links


class LoadedSources:
    """Sources of the user's modules as they were when this process loaded them, or when this object was made."""

    def __init__(self) -> None:
        self._notes: dict[str, tuple[FileState | None, bytes]] = {}  # by path

    def note(self, path: str) -> None:
        if path.startswith(_NOT_THE_USERS) or _SITE.search(path):
            return
        with suppress(OSError):
            self._notes[path] = file_state(path), Path(path).read_bytes()

    def paths(self) -> dict[str, object]:
        """What is noted, with an object that stands for when."""
        return dict(self._notes)

    def check(self, paths: Iterable[str], meaning: Callable[[bytes], Any]) -> dict[str, FileState | None]:
        """States of these files, as of now; raises CodeChanged if one no longer means what was loaded."""
        states = {path: file_state(path) for path in paths if path in self._notes}
        for path, state in states.items():
            noted, content = self._notes[path]
            if state != noted and (state is None or meaning(Path(path).read_bytes()) != meaning(content)):
                raise changed_source(Path(path).name)
        return states


def changed_source(name: str) -> CodeChanged:
    """The error for code of the user's that is not what a key would say."""
    return CodeChanged(
        f"{name} changed after it was loaded, so nothing is recorded; run again (in a notebook, reload the module)"
    )


_NOT_THE_USERS = (_PACKAGE, *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")))
_SITE = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


@cache
def loaded_sources() -> LoadedSources:
    """This process's. From the first call on, each source that is imported or reloaded is noted."""
    sources, stats = LoadedSources(), SourceFileLoader.path_stats
    for name in list(sys.modules):
        if (path := module_file(name)).endswith(".py"):
            sources.note(path)

    def noted_stats(loader: SourceFileLoader, path: Any) -> Any:
        sources.note(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 - as above
        return stats(loader, path)

    # The import system calls it for each source before it looks for byte code; its audit events name no file.
    SourceFileLoader.path_stats = noted_stats  # type: ignore[method-assign, assignment]
    return sources
