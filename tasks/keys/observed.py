"""What a builder really loaded, seen from the process that ran it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .code import PTEFORGE
from .search import ModuleSearch, Origin


def observed_modules(
    before: set[str], python_path: tuple[Path, ...], path_before: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Local modules loaded since ``sys.modules`` was `before`: what the static closure missed is to be watched.

    Sorted. A module stands as its dotted name if `ModuleSearch` finds that file by it, otherwise (the builder changed
    ``sys.path``, or loaded a file under a name of its own) as its absolute path. pteforge's own are not listed.

    Args:
        before: names in ``sys.modules`` before the builder's module was imported.
        python_path: what this process put before its ``sys.path``.
        path_before: ``sys.path`` at the time of `before`; by what the builder added to it nobody else finds a module.
            Left out: ``sys.path`` as it is now.
    """
    search = ModuleSearch(python_path, None if path_before is None else tuple(path_before))
    observed = set()
    for name, path in _loaded_files(before):
        top = name.partition(".")[0]
        if top != PTEFORGE and search.origin_of(path, top) is Origin.LOCAL:
            located = search.locate(name)
            observed.add(name if located and located.resolve() == path.resolve() else str(path))
    return tuple(sorted(observed))


def observed_distributions(before: set[str], python_path: tuple[Path, ...]) -> tuple[str, ...]:
    """Sorted top-level names of installed modules loaded since `before`, those that had been loaded in part left out.

    They tell what a builder's imports import in turn. `source_fields` takes them among the watched names, and puts
    their versions into the key.
    """
    search = ModuleSearch(python_path)
    tops = {(name.partition(".")[0], path) for name, path in _loaded_files(before)}
    loaded_before = {name.partition(".")[0] for name in before}
    return tuple(sorted({top for top, path in tops if search.origin_of(path, top) is Origin.INSTALLED} - loaded_before))


def _loaded_files(before: set[str]) -> Iterator[tuple[str, Path]]:
    for name in set(sys.modules) - before - {"__main__", "__mp_main__"}:
        try:
            # Not getattr: asking a lazily loaded module for an attribute loads it.
            file = object.__getattribute__(sys.modules[name], "__dict__").get("__file__")
        except AttributeError:
            continue  # not a module: anything may be put into sys.modules
        if isinstance(file, str):
            yield name, Path.cwd() / file
