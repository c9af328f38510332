"""Any file of a store, of the results, or of a release is damaged in any way: no wrong byte is believed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from pteforge.artifacts import known_files
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.files import remove
from pteforge.artifacts.gc import collect, usage, verify_store
from pteforge.artifacts.local_store import LAYOUT
from pteforge.artifacts.ref import ArtifactRef, BlobRef
from pteforge.artifacts.store import Store, open_store
from pteforge.configs.load import load_zoo
from pteforge.errors import InputError, ObjectDamaged, ObjectMissing, ReleaseDamaged, StoreUnusable
from pteforge.flows.releases.contents import find_results, read_contents
from pteforge.flows.releases.releases import Releases
from pteforge.flows.run.select import select_models
from pteforge.flows.run.zoo import find_models
from pteforge.tasks.engine.executor import Executor, LedgerRunner
from pteforge.tasks.engine.keys.search import ModuleSearch
from pteforge.tasks.engine.runner import NotCached
from pteforge.tasks.engine.workers import Workers
from pteforge.tasks.lowering.graph import lower_model
from pteforge.tasks.lowering.model import PlannedModel
from pteforge.tasks.lowering.runs import ModelRun, run_without_loop
from pteforge.tests.faults.campaign import Campaign, patience, trying
from pteforge.tests.faults.zoo import make_two_models
from pteforge.tests.flows.conftest import Project, lower_zoo, open_run

_LOWERED = 0.01  # share of the trials that lower the zoo again; the others ask for all that is stored
_EXPORTED = 0.001  # share of those that do so by the command line
_AGAIN = 0.3  # share of the stages that a trial that lowers has to run again
_PATIENCE = 120.0

_FOLDERS = {
    "object": ("store/objects",),
    "record of a stage": ("store/ledger/stages",),
    "other record": ("store/ledger/slots", "store/ledger/watch", "store/ledger/zoos", "store/ledger/published"),
    "record of a run": ("store/runs",),
    "version or lock": ("store",),
    "result": ("out",),
    "release": ("releases/files", "releases/releases", "releases/channels"),
}
_WEIGHTS = (8, 5, 4, 1, 1, 3, 2)

Found = dict[tuple[str, str], Mapping[str, ArtifactRef]]
"""Outputs by recipe and step."""


@dataclass(frozen=True)
class Whole:
    """A lowered and released zoo, undamaged.

    Attributes:
        project: where all trials work, as some records name its path.
        pristine: of which it is a copy before each trial, made of links; `entries` of it.
        said: what each record says, by a name.
        sizes: of every object, by digest.
        found: what the executor finds, by model.
        released: files by path, as they are fetched.
    """

    project: Project
    pristine: Path
    entries: dict[str, int]
    models: tuple[PlannedModel, ...]
    said: dict[str, Any]
    sizes: dict[str, int]
    found: dict[str, Found]
    files: dict[str, bytes]
    released: dict[str, bytes]
    workers: Workers

    def close(self) -> None:
        self.workers.stop()

    def restore(self) -> None:
        """Undoes what the last trial did. Nothing writes into a file in place: those that are the same links stay."""
        here, there = entries(self.project.folder), self.entries
        for name in sorted(name for name, entry in here.items() if there.get(name) != entry):
            remove(self.project.folder / name)
        for name in sorted(name for name, entry in there.items() if here.get(name) != entry):
            path = self.project.folder / name
            path.mkdir(mode=0o700) if there[name] == 0 else os.link(self.pristine / name, path)


def entries(folder: Path) -> dict[str, int]:
    """Inodes of all files below a folder, 0 for folders; by path."""
    found: dict[str, int] = {}
    for path, names, files in os.walk(folder):
        place = os.path.relpath(path, folder)
        for name in names + files:
            status = os.lstat(f"{path}/{name}")
            found[os.path.normpath(f"{place}/{name}")] = 0 if stat.S_ISDIR(status.st_mode) else status.st_ino
    return found


def prepare(folder: Path) -> Whole:
    """Lowers the zoo, and releases its results."""
    project, workers = make_two_models(folder / "project"), Workers(jobs=1)
    assert lower_zoo(project, workers).outcome.exit_code == 0
    Releases(str(project.folder / "releases")).publish(read_contents("zoo", find_results(project.out), []))
    with mock.patch.object(known_files, "_SETTLING", 0):  # or only results that were written a while ago
        assert lower_zoo(project, workers).outcome.exit_code == 0  # which remembers the results
    models = select_models(load_zoo(project.folder / "zoo.yaml"))
    with open_store(str(project.store)) as store:
        whole = Whole(
            project=project,
            pristine=folder / "pristine",
            entries=entries(project.folder),
            models=models,
            said=dict(records(store, project)),
            sizes={stored.digest: stored.size for stored in store.objects()},
            found={model.name: found_by_executor(store, workers, model) for model in models},
            files=project.files(),
            released=fetched(project, folder / "fetched"),
            workers=workers,
        )
    assert {name.partition(" ")[0] for name in whole.said} == {"stage", "slot", "watched", "model", "run"}
    project.folder.rename(whole.pristine)
    project.folder.mkdir()
    return whole


def records(store: Store, project: Project) -> Iterator[tuple[str, Any]]:
    """Everything that the store's records say, by a name."""
    yield from ((f"stage {record.key}", record) for record in store.ledger)
    yield from ((f"slot {record.slot}", record) for record in store.ledger.slots())
    yield from ((f"watched {record.source}", record) for record in store.ledger.watch_lists())
    yield from ((f"model {name}", record) for name, record in whole_models(store, project).items())
    yield from ((f"run {record.id} {record.status}", record) for record in store.runs)


def whole_models(store: Store, project: Project) -> Any:
    return store.ledger.whole_models(str(project.folder / "zoo.yaml"))


def found_by_executor(store: Store, workers: Workers, model: PlannedModel) -> Found:
    """What the executor finds of each stage of a model, up to the first one that has to run."""
    run = ModelRun(LedgerRunner(Executor(store, workers)), model, finder=ModuleSearch(model.python_path))
    with contextlib.suppress(NotCached, ObjectMissing, ObjectDamaged):
        for result in run_without_loop(lower_model(run)).values():
            if isinstance(result, Exception):
                raise result
    parts = {"": run, **run.recipes}
    return {(name, str(step)): done.roles for name, part in parts.items() for step, done in part.done.items()}


def fetched(project: Project, folder: Path) -> dict[str, bytes]:
    """What is fetched of the release that the channel names."""
    releases = Releases(str(project.folder / "releases"))
    releases.fetch(releases.find("latest"), "*", folder)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def trial(whole: Whole, rng: random.Random, folder: Path) -> str:
    """Damages one file, and asks for everything, or lowers the zoo again."""
    whole.restore()
    project = whole.project
    what, path = pick(project, rng)
    name, damage = rng.choice([(name, damage) for name, several in _DAMAGES.items() for damage in several])
    exported, lowered = rng.random() < _EXPORTED, rng.random() < _LOWERED
    kind = f"{what}: {name}"
    with trying(kind), patience(_PATIENCE):
        damage(path, rng)
        try:
            if exported:
                export_again(whole, project)
            elif lowered:
                lower_again(whole, project, rng)
            else:
                ask(whole, rng, folder)
            with open_store(str(project.store)) as store:
                maintain(whole, store)
        except StoreUnusable:
            # The user has to know: there is another version's store.
            assert cannot_be_opened(project.store), path
            return f"{kind}, an error says so"
    return kind


def cannot_be_opened(store: Path) -> bool:
    """Whether its `version` is not what pteforge has written."""
    version = store / "version"
    return not version.is_file() or version.read_bytes() != LAYOUT


def pick(project: Project, rng: random.Random) -> tuple[str, Path]:
    """One file, of what kind it is."""
    (what,) = rng.choices(list(_FOLDERS), _WEIGHTS)
    found = [path for name in _FOLDERS[what] for path in sorted((project.folder / name).rglob("*")) if path.is_file()]
    if what == "version or lock":
        found = [project.store / "version", project.store / "lock"]
    return what, rng.choice(found)


def ask(whole: Whole, rng: random.Random, folder: Path) -> None:
    """Asks each part for all that it has, in any order, each as a process of its own does."""
    parts = [read_everything, look_up, rerun]
    for part in rng.sample(parts, len(parts)):
        with open_store(str(whole.project.store)) as store:
            part(whole, store)
    with contextlib.suppress(InputError, ReleaseDamaged, StoreUnusable):
        assert fetched(whole.project, folder / "fetched") == whole.released


def read_everything(whole: Whole, store: Store) -> None:
    """Each object and record is as it was, or absent, or found damaged."""
    for digest, size in whole.sizes.items():
        for read in (store.local.read, lambda blob: store.local.path(blob).read_bytes()):
            try:
                content = read(BlobRef(digest, size))
            except (ObjectMissing, ObjectDamaged):
                continue
            assert digest_bytes(content) == digest
    for name, record in records(store, whole.project):
        assert record == whole.said.get(name, record), name
        assert name in whole.said or name.startswith("run "), name
    for name in whole.said:
        if name.startswith("stage "):
            assert store.ledger.lookup(name[6:]) in (None, whole.said[name])


def look_up(whole: Whole, store: Store) -> None:
    """The executor finds the right outputs, or fewer."""
    for model in whole.models:
        found, right = found_by_executor(store, whole.workers, model), whole.found[model.name]
        assert all(right[step] == roles for step, roles in found.items())


def rerun(whole: Whole, store: Store) -> None:
    """A model of which a run takes all for cached has the right files afterwards."""
    with open_run(whole.project, whole.workers, store=contextlib.nullcontext(store)) as session:
        find_models(session)
        session.recording.save("completed")
    files = whole.project.files() if session.progress.outcomes else {}
    for name, content in whole.files.items():
        assert name.partition("/")[0] not in session.progress.outcomes or files[name] == content, name


def maintain(_whole: Whole, store: Store) -> None:
    """No command on the store fails, and `store verify` finds all damage the first time."""
    usage(store)
    collect(store, dry_run=True)
    verify_store(store)
    assert not (found := verify_store(store)).damaged, found


def export_again(whole: Whole, project: Project) -> None:
    """The command line makes the results again."""
    done = project.export()
    if done.code and cannot_be_opened(project.store) and str(project.store) in done.err:
        raise StoreUnusable(done.err)
    assert done.code == 0, done.err
    assert project.files() == whole.files


def lower_again(whole: Whole, project: Project, rng: random.Random) -> None:
    """The results are made again by a run that has to run some stages."""
    with open_store(str(project.store)) as store:
        keys = [name[6:] for name in whole.said if name.startswith("stage ")]
        store.ledger.forget(*(key for key in keys if rng.random() < _AGAIN))
    for result in project.out.rglob("*.pte"):
        result.unlink() if rng.random() < _AGAIN and result.is_file() else None
    outcome = lower_zoo(project, whole.workers).outcome
    assert outcome.exit_code == 0, outcome.failures
    assert project.files() == whole.files


def flip(path: Path, rng: random.Random) -> None:
    """One bit; nothing if the file is empty."""
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    write(path, bytes(content))


def rot(path: Path, rng: random.Random) -> None:
    """A bit flips as disks do it: times and mode stay."""
    before = path.stat()
    flip(path, rng)
    path.chmod(before.st_mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def write(path: Path, content: bytes) -> None:
    """Puts another file in the place of one that may be write-protected, and linked to what all trials start from."""
    path.unlink()
    path.write_bytes(content)


def others_of(path: Path) -> list[Path]:
    """Files of the same kind, as far as folders tell."""
    return sorted(other for other in path.parent.parent.rglob("*") if other.is_file() and other != path)


def swap(path: Path, rng: random.Random) -> None:
    """Exchanges a file with another one of its kind."""
    others = others_of(path)
    if others:
        other, aside = rng.choice(others), path.with_name("aside")
        path.rename(aside)
        other.rename(path)
        aside.rename(other)


def copy_over(path: Path, rng: random.Random) -> None:
    """The content of another file of its kind, with the times and mode of the file."""
    before = path.stat()
    others = others_of(path)
    write(path, rng.choice(others).read_bytes() if others else b"")
    path.chmod(before.st_mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


_DAMAGES: dict[str, tuple[Callable[[Path, random.Random], object], ...]] = {
    "bit flipped": (flip,),
    "bit flipped, times kept": (rot,),
    "truncated, emptied or grown": (
        lambda path, rng: write(path, path.read_bytes()[: rng.randrange(1 + path.stat().st_size)]),
        lambda path, _: write(path, b""),
        lambda path, rng: write(path, path.read_bytes() + rng.randbytes(rng.randrange(1, 5000))),
    ),
    "exchanged with another": (swap, copy_over),
    "deleted": (lambda path, _: path.unlink(), lambda path, _: shutil.rmtree(path.parent)),
}

DAMAGE = Campaign("Damage", prepare, trial, trials=10_000)
