"""What a builder really loaded, seen from the process that ran it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from .code import PTEFORGE
from .search import ModuleSearch, Origin


def observed_modules(before: set[str], python_path: tuple[Path, ...]) -> tuple[str, ...]:
    """What to watch besides the static closure: local code and distributions loaded since ``sys.modules`` was `before`.

    Sorted. A local module stands as its dotted name if `ModuleSearch` finds that file by it, otherwise (the builder
    changed ``sys.path``, or loaded a file under a name of its own) as its absolute path. What is installed stands as
    its top-level name, unless something of it was loaded before. Neither pteforge nor Python itself is listed.

    Args:
        before: names in ``sys.modules`` before the builder's module was imported.
        python_path: what this process put before its ``sys.path``.
    """
    search = ModuleSearch(python_path)
    tops_before = {name.partition(".")[0] for name in before}
    observed: set[str] = set()
    for name, path in _loaded_files(set(sys.modules) - before):
        top = name.partition(".")[0]
        origin = search.origin_of(path, top)
        if top == PTEFORGE or origin is Origin.STDLIB:
            continue
        if origin is Origin.INSTALLED:
            observed.update({top} - tops_before)
        else:
            located = search.locate(name)
            observed.add(name if located and located.resolve() == path.resolve() else str(path))
    return tuple(sorted(observed))


def _loaded_files(names: set[str]) -> Iterator[tuple[str, Path]]:
    for name in names - {"__main__", "__mp_main__"}:
        try:
            # Not getattr: asking a lazily loaded module for an attribute loads it.
            file = object.__getattribute__(sys.modules[name], "__dict__").get("__file__")
        except AttributeError:
            continue  # not a module: anything may be put into sys.modules
        if isinstance(file, str):
            yield name, Path(os.path.abspath(file))
