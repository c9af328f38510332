"""The origin of a file, recorded in its provenance so that `pteforge reproduce` can make it again."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ... import __version__
from ...artifacts.records import Record
from ...configs.load import LoadedZoo, load_zoo
from ...configs.places import HOST
from ...configs.zoo import Zoo
from ...tasks.engine.keys.search import host_capability


@dataclass(frozen=True, slots=True)
class Origin(Record):
    """A model of a zoo, as a run lowered it.

    `zoo` is a zoo file with the model and its recipes, after includes, defaults and overrides. Paths below the root of
    the repository, or below the folder of a zoo without git, are relative to `folder`.
    """

    zoo: Mapping[str, Any]
    folder: str  # of the zoo, relative to the root of the repository; empty without git
    debug: bool  # whether the run had the option --debug
    python: str  # version
    machine: str  # the vector instructions by which torch chose kernels

    @classmethod
    def of(cls, loaded: LoadedZoo, model: str, *, debug: bool) -> Origin:
        here = loaded.files[0].parent
        folder = git_folder(here) or ""
        zoo = _part(loaded.zoo, model, here, root_of(here, folder))
        return cls(zoo, folder, debug, platform.python_version(), host_capability())

    def load(self, folder: Path) -> LoadedZoo:
        """The zoo, as if it were a file in a folder; raises ConfigError as `load_zoo`."""
        return load_zoo(folder / "zoo.yaml", text=json.dumps(dict(self.zoo)))


def git_commit(folder: Path) -> str:
    """The commit that is checked out in a folder, with ``-dirty`` if tracked files differ; empty without git."""
    return _git(folder, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*") or ""


def version_in(root: Path) -> str:
    """The version of pteforge; with the commit in a clone that is not at its release, such as 0.1.0+g1a2b3c4."""
    if not (root / ".git").exists():  # installed, maybe inside another project's repository
        return __version__
    described = _git(root, "describe", "--tags", "--long", "--always", "--dirty=.dirty", f"--match=v{__version__}")
    ahead, _, commit = (described or "").rpartition("-g")
    released = ahead.endswith("-0") and commit.isalnum()
    return __version__ if released or not commit else f"{__version__}+g{commit}"


def root_of(folder: Path, inside: str) -> Path:
    """The folder in which the relative path of `folder` is `inside`."""
    return (folder, *folder.parents)[len(Path(inside).parts)]


@cache
def git_folder(folder: Path) -> str | None:
    """A folder relative to the root of its repository; None without git. Cached, since each file asks."""
    prefix = _git(folder, "rev-parse", "--show-prefix")
    return None if prefix is None else prefix.rstrip("/")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - as the user's own
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _part(zoo: Zoo, model: str, folder: Path, root: Path) -> dict[str, Any]:
    """The zoo with one model, and the recipes that it names, as JSON."""

    def relative(path: object) -> str:
        if not isinstance(path, Path):
            raise TypeError(f"{path!r} is not JSON")
        return os.path.relpath(path, folder) if path.is_relative_to(root) else str(path)

    recipes = {}
    for name in zoo.recipes_of(model):  # without exceptions for other models, which the loader would not find
        recipe = zoo.recipes[name]
        exceptions = {glob: reason for glob, reason in recipe.not_for.items() if fnmatchcase(model, glob)}
        changes: dict[str, Any] = {"not_for": exceptions} if recipe.not_for else {}
        if recipe.verify.on != (HOST,):  # other places need not be there where the file is made again
            changes["verify"] = recipe.verify.model_copy(update={"on": (HOST,), "required": False})
        recipes[name] = recipe.model_copy(update=changes) if changes else recipe
    part = zoo.model_copy(update={"models": {model: zoo.models[model]}, "recipes": recipes})
    fields = part.model_dump(exclude={"run", "publish", "places"}, exclude_unset=True)
    tree: dict[str, Any] = json.loads(json.dumps(fields, default=relative))
    return tree
