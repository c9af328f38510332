"""Compares two files, folders of results, runs, or releases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from ...artifacts.digest import digest_file
from ...artifacts.store import Store
from ...errors import InputError, ObjectDamaged, ObjectMissing, first_line
from ...tasks.results.delivered import Delivered, delivered_by
from ..reports.comparison import Limit, compared, regressions, weight_files
from ..reports.snapshot import CONTENTS, PROVENANCE, Difference, Facts, Snapshot, changes, latencies
from .publish import ResultsFolder
from .records import ReleasedFile, names_release

if TYPE_CHECKING:
    from .releases import Releases

ONE_FILE = ""  # the name of the file on a side that is a single file: two of these are compared whatever they are


@dataclass(frozen=True, slots=True)
class File:
    """A file on a side."""

    read: Callable[[], Snapshot]
    sha256: Callable[[], tuple[str, ...]]  # of the `.pte` and its `.ptd`; empty if the file does not exist
    recorded: Callable[[], Snapshot] | None = None  # for files to download: what is known without that

    @classmethod
    def at(cls, path: Path) -> File:
        return cls(lambda: Snapshot.of_file(path), lambda: tuple(map(digest_file, (path, *weight_files(path)))))

    @classmethod
    def of_release(cls, releases: Releases, released: ReleasedFile) -> File:
        def read() -> Snapshot:
            with TemporaryDirectory(prefix="pteforge-") as folder:
                return Snapshot.of_file(releases.fetch_file(released, Path(folder) / "file.pte"))

        sha256 = tuple(content.sha256 for content in released.contents)
        return cls(read, lambda: sha256, lambda: Snapshot.of(released.result))

    def outline(self) -> Snapshot:
        """The snapshot without downloading the file."""
        return (self.recorded or self.read)()


@dataclass(frozen=True, slots=True)
class Side:
    """One of two sides to compare, as the user named it."""

    title: str
    files: Mapping[str, File]  # by MODEL/RECIPE
    absent: Mapping[str, str] = field(default_factory=dict)  # known reasons why there is no file, by MODEL/RECIPE


def find_side(text: str, open_store: Callable[[], Store]) -> Side:
    """Finds a file, a folder of results, a release, or a run by its id or a prefix of it.

    Raises InputError if there is none, or nothing to compare in it; ReleaseDamaged if a release cannot be understood.
    """
    path = Path(text)
    if names_release(text):
        from .releases import open_release  # noqa: PLC0415 - imports fsspec

        releases, release = open_release(text)
        of_release = releases.manifest(release).files
        return Side(text, {name: File.of_release(releases, released) for name, released in of_release})
    if path.is_dir():
        return _folder_side(text, path)
    if path.exists():
        return Side(text, {ONE_FILE: File.at(path)})
    store = open_store()
    named = store.runs.named(text)
    if named is None:
        raise InputError(
            f"there is no file or folder {text!r}, and no run with this id in the store {store.url}; "
            "`pteforge runs` lists runs; a release is URL#RELEASE"
        )
    run = named[1]
    results = [result for recipes in delivered_by(run).values() for result in recipes.values()]
    files = {result.name: _recorded_file(store, result, result.path) for result in results if result.path}
    absent = {result.name: _absence(result) for result in results if not result.path}
    if not files and not any(result.failure for result in results):
        raise InputError(f"the run {text} of {run.zoo} recorded no files; `pteforge why` says what it did")
    return Side(text, files, absent)


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A file on both sides, or on one."""

    name: str
    before: Delivered | None
    after: Delivered | None
    changes: tuple[Difference, ...] = ()  # facts that differ, by area; none if `status` is ``added`` or ``removed``
    notes: tuple[str, ...] = ()  # what could not be compared and why, or why the file does not exist
    regressions: tuple[str, ...] = ()  # a sentence for each limit that is exceeded
    times: tuple[Difference, ...] = ()  # of calls, unless the files are equal in everything

    @property
    def status(self) -> Literal["added", "removed", "changed", "equal"]:
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        return "changed" if self.changes else "equal"

    @property
    def is_shown(self) -> bool:
        """Whether there is something to say of it."""
        return bool(self.status != "equal" or self.notes or self.times)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status,
            "before": self.before and compared(self.before),
            "after": self.after and compared(self.after),
            "changes": [change.to_json() for change in self.changes],
            "times": [change.to_json() for change in self.times],
            "notes": list(self.notes),
            "regressions": list(self.regressions),
        }


def compare(before: Side, after: Side, limits: Sequence[Limit] = ()) -> Iterator[FileDifference]:
    """Compares files by name; raises InputError if a file cannot be read, or only one side is a single file."""
    if (ONE_FILE in before.files) != (ONE_FILE in after.files):
        file, other = (before, after) if ONE_FILE in before.files else (after, before)
        raise InputError(f"{file.title} is a file and {other.title} is not: compare two files, or two folders or runs")
    for name in sorted({*before.files, *after.files}):
        old, new = before.files.get(name), after.files.get(name)
        if old and new:
            yield compare_files(name, old, new, limits)
        else:
            absent = (before if new else after).absent
            notes = (absent[name],) if name in absent else ()
            earlier, later = old.outline().result if old else None, new.outline().result if new else None
            yield FileDifference(name, earlier, later, notes=notes)


def compare_files(name: str, before: File, after: File, limits: Sequence[Limit] = ()) -> FileDifference:
    """Compares two files; downloads none if both have the same bytes. Raises InputError if one cannot be read."""
    if (before.recorded or after.recorded) and before.sha256() == after.sha256() != ():
        old, new = (file.outline().with_contents(Facts()) for file in (before, after))
    else:
        old, new = before.read(), after.read()
    notes = []
    for which, parts in (("earlier", old.facts.parts), ("new", new.facts.parts)):
        if CONTENTS not in parts:
            problem = "does not exist any more: only the figures that its run recorded are compared"
            notes.append(f"the {which} file {problem}")
        elif PROVENANCE not in parts:
            problem = "has no provenance next to it: numerics, accuracy and toolchain are not compared"
            notes.append(f"the {which} file {problem}")
    exceeded = regressions(old.result, new.result, limits)
    readable = CONTENTS in old.facts.parts and CONTENTS in new.facts.parts
    if not readable and any(limit.kind == "delegation" for limit in limits):
        exceeded.append(f"{new.result.name}: delegation cannot be compared: a file does not exist any more")
    title = name or " and ".join(dict.fromkeys((old.result.name, new.result.name)))
    differing = changes(old.facts, new.facts)
    times = latencies(old.result, new.result) if differing else ()
    return FileDifference(title, old.result, new.result, differing, tuple(notes), tuple(exceeded), times)


def _folder_side(title: str, folder: Path) -> Side:
    paths = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.pte"))
        if not path.name.endswith(".rejected.pte")
    }
    if not paths:
        raise InputError(f"there are no .pte files in the folder {folder}; name a folder that `export --out` wrote")
    return Side(title, {name: File.at(path) for name, path in paths.items()})


def _absence(result: Delivered) -> str:
    if result.failure:
        at = f" at {result.failure.step}" if result.failure.step else ""
        return f"failed{at}: {first_line(result.failure.problem)}"
    return f"{result.status}: {result.reason}" if result.reason else "the run made no file"


def _recorded_file(store: Store, result: Delivered, path: Path) -> File:
    """A file where the run wrote it, else from the store, else only what the run recorded about it."""
    written = File.at(path)

    def is_there() -> bool:
        return path.is_file() and digest_file(path) == result.sha256

    def read() -> Snapshot:
        if is_there():
            return written.read()
        with TemporaryDirectory(prefix="pteforge-") as folder:
            if rebuilt := _rebuild(store, result, Path(folder)):
                return Snapshot.of_file(rebuilt)
        return Snapshot.of(result)

    return File(read, lambda: written.sha256() if is_there() else ())


def _rebuild(store: Store, result: Delivered, folder: Path) -> Path | None:
    """Writes a file as the run published it; None if the store lacks a part of it."""
    report = result.parts.get("provenance")
    if report is None:
        return None
    try:
        store.fetch(report)
        provenance = json.loads(store.local.read_artifact(report))
        result = replace(result, recipe="file")
        return ResultsFolder(store, folder).publish(result, provenance, {}).path
    except (ObjectMissing, ObjectDamaged):
        return None
