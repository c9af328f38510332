"""Makes a file of a release again from its manifest, and compares the two."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from ... import __version__
from ...artifacts.records import Record
from ...artifacts.store import open_store
from ...configs.load import LoadedZoo
from ...errors import InputError
from ...tasks.engine.executor import Executor
from ...tasks.engine.keys.search import distribution_versions, host_capability
from ...tasks.engine.workers import Workers
from ...tasks.lowering.graph import STAGES
from ..releases.difference import File, FileDifference, compare_files
from ..releases.records import ReleasedFile
from ..releases.releases import Releases
from .origin import Origin, git_commit, git_folder, root_of
from .request import ExportRequest
from .select import select_models
from .session import Session, check_names
from .zoo import lower_rest

Observe = Callable[[Session], AbstractContextManager[None]]
"""Shows the progress of a session while a context is open."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A file of a release, compared with the one that was made again."""

    name: str  # MODEL/RECIPE
    release: str
    sha256: str  # of the file in the release
    difference: FileDifference | None  # None if the files, and their `.ptd`, have the same bytes
    notes: tuple[str, ...] = ()  # possible reasons

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "release": self.release,
            "sha256": self.sha256,
            "reproduced": self.difference is None,
            "difference": self.difference and self.difference.to_json(),
            "notes": list(self.notes),
        }


def reproduce(
    releases: Releases,
    release: str,
    name: str,
    *,
    source: Path,
    observe: Observe,
    jobs: int | None = None,
    public_key: Path | None = None,
) -> Reproduction:
    """Lowers ``MODEL/RECIPE`` of a release again, with a store and a cache of its own.

    `source` is a folder in a checkout of the zoo's repository, or the zoo's folder if it was in none. With
    `public_key`, checks the signature first. Raises InputError, before anything runs, if there is no such file, or with
    all differences of sources and packages; ReleaseDamaged if the release cannot be read or its signature does not fit;
    StageFailed if a stage or the verification fails.
    """
    files = dict(releases.manifest(release, public_key).files)
    if name not in files:
        raise InputError(f"there is no {name} in the release {release} at {releases.url}; it has {', '.join(files)}")
    released = files[name]
    recorded = _recorded(released, f"{name} of the release {release}")
    loaded = _prepare(recorded, released, name, source)
    with (
        TemporaryDirectory(prefix="pteforge-reproduce-") as folder,
        patch.dict(os.environ, PTEFORGE_CACHE=f"{folder}/cache"),  # of this process, and of workers that it starts
    ):
        path = _make(loaded, recorded.request, name, Path(folder), observe, jobs)
        before, after = File.of_release(releases, released), File.at(path)
        sha256 = released.file.sha256
        if before.sha256() == after.sha256():
            return Reproduction(name, release, sha256, None)
        keys = json.loads(path.with_suffix(".json").read_bytes())["stage_keys"]
        notes = tuple(_suspicions(recorded.request, released.provenance["stage_keys"], keys))
        return Reproduction(name, release, sha256, compare_files(name, before, after), notes)


@dataclass(frozen=True, slots=True)
class _Run(Record):
    """The run that made a file, from its provenance."""

    version: str
    commit: str
    request: Origin


def _recorded(released: ReleasedFile, what: str) -> _Run:
    try:
        return _Run.from_json(released.provenance["run"])
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{what} does not record what it was made from, so it cannot be reproduced: {error}; "
            "export it with this version of pteforge, and publish it again"
        ) from error


def _prepare(recorded: _Run, released: ReleasedFile, name: str, source: Path) -> LoadedZoo:
    """The zoo to lower; raises InputError with everything that has changed, and how to get it back."""
    source = source.absolute()
    inside = git_folder(source) if recorded.commit else None
    folder = root_of(source, inside or "") / recorded.request.folder
    versions = _other_versions(recorded, released.result.toolchain)
    if problems := [*_other_sources(recorded, folder), *versions]:
        raise InputError("\n  ".join((f"{name} was not made with what is here, and nothing was built:", *problems)))
    return recorded.request.load(folder)


def _other_sources(recorded: _Run, folder: Path) -> Iterator[str]:
    present = git_commit(folder)
    if not recorded.commit or recorded.commit == present:
        return
    commit, dirty, _ = recorded.commit.partition("-dirty")
    if not present:
        yield f"git commit {commit}: {folder} is in no repository; check it out, and name its folder with --source"
        return
    here, changed, _ = present.partition("-dirty")
    changes = " with changes that were not committed, which have to be made again" if dirty else ""
    if commit != here:
        where = f"{here} with changes" if changed else here
        yield f"git commit {commit}{changes}: here is {where}; git -C {folder} checkout {commit}"
    elif dirty:
        yield f"git commit {commit}{changes}: it is checked out, and no tracked file is changed"
    else:
        yield f"git commit {commit}: it is checked out, and tracked files are changed; git -C {folder} stash"


def _other_versions(recorded: _Run, toolchain: Mapping[str, str]) -> Iterator[str]:
    here = {**distribution_versions(toolchain), "pteforge": __version__}
    for name, version in {**toolchain, "pteforge": recorded.version}.items():
        if (present := here.get(name)) != version:
            number = version.partition(" ")[0]
            build = ", from the same wheel" if (present or "").partition(" ")[0] == number else ""
            yield f"{name} {version}: here is {present or 'none'}; pip install '{name}=={number}'{build}"


def _make(loaded: LoadedZoo, origin: Origin, name: str, folder: Path, observe: Observe, jobs: int | None) -> Path:
    """Lowers and verifies a file; raises InputError or StageFailed."""
    models = select_models(loaded, *name.split("/"))
    if origin.debug:
        models = tuple(model.for_debugging() for model in models)
    with open_store(str(folder / "store")) as store, Workers(jobs=jobs) as workers:
        executor = Executor(store, workers)
        request = ExportRequest(zoo=loaded.files[0], out=folder / "out", debug=origin.debug)
        session = Session(loaded, models, executor, workers, request)
        with observe(session):
            check_names(session)
            asyncio.run(lower_rest(session, session.local_runner()))
    (outcome,) = session.progress.outcome().models
    delivered = outcome.recipes[0]
    if delivered.failure:
        raise delivered.failure.error(name)
    if delivered.path is None:
        raise InputError(f"{name}: {delivered.reason}")
    return delivered.path


def _suspicions(origin: Origin, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    machine, python = host_capability(), platform.python_version()
    if origin.machine != machine:
        yield f"it was made on a machine with other vector instructions: {origin.machine}; here are {machine}"
    if origin.python != python:
        yield f"it was made with Python {origin.python}; here is {python}"
    order = [stage.name for stage in STAGES]
    other = [step for step in {**before, **after} if before.get(step) != after.get(step)]
    if other:
        first = min(other, key=lambda step: order.index(re.split("[/.]", step)[0]))
        yield f"the first stage with another key is {first}: its code, inputs or parameters are not the same"
    else:
        yield "all stages have the same keys, so one of them does not make the same bytes each time"
