"""Writes changed files to the user's folder, atomically, and releases them if asked to."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ...artifacts.digest import digest_bytes, digest_file, digest_json
from ...artifacts.files import open_input, replace_file
from ...artifacts.known_files import KnownFiles
from ...artifacts.ref import ArtifactRef
from ...artifacts.runs import ReleaseOutcome, RunRecord
from ...artifacts.store import Store
from ...configs.zoo import PublishConfig
from ...errors import InputError, StoreUnusable, convert_os_errors
from ...tasks.programs.payload import asset_blobs, payload_sha256, write_payload
from ...tasks.results.accuracy import FOUND, AccuracyReport, FoundQuantization
from ...tasks.results.delivered import Delivered

if TYPE_CHECKING:  # these import fsspec and readers of files, which runs without a release do without
    from ..reports.comparison import Limit
    from .contents import ReleaseContents
    from .records import Published

_log = logging.getLogger(__name__)

_Json = Mapping[str, Any]  # an object
_INCOMPLETE = "not all files were made"


def check_folders(folders: Iterable[Path]) -> None:
    """Raises InputError, before any work, if a folder for results does not exist and cannot be created."""
    for folder in folders:
        existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not existing.is_dir():
            raise InputError(f"results cannot be written to {folder}: {existing} is not a folder; choose another --out")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise InputError(f"results cannot be written to {folder}: {existing} is read-only; choose another --out")


class ResultsFolder:
    """The folder for results, with a folder for each model, and the known digests of its files."""

    def __init__(self, store: Store, out: Path) -> None:
        self.out = out
        self.known_files = KnownFiles(store.local.root, f"published/{digest_bytes(str(out).encode())}")
        self._store = store

    def publish(self, result: Delivered, provenance: _Json, run: _Json) -> Delivered:
        """Writes `.pte`, `.ptd`, `.json`, `.found.yaml` and assets; returns their path and digests.

        Removes an earlier rejected file. The provenance is written with the run; that of an earlier
        run with the same findings stays. Raises StoreUnusable if the folder cannot be written.
        """
        recipe, parts, folder = result.recipe, result.parts, self.out / result.model
        path, rejected = folder / f"{recipe}.pte", folder / f"{recipe}.rejected.pte"
        digests = {**result.digests, "json": digest_json(provenance)}  # a run decides nothing
        with convert_os_errors(StoreUnusable, f"cannot write {path}", "choose another --out folder"):
            self._write_files(parts["file"], parts.get("data"), path)
            if "assets" in parts:
                self._store.fetch(parts["assets"])
                for name, blob in asset_blobs(parts["assets"], self._store.local).items():
                    if self.known_files.sha256(folder / name) != blob.digest:
                        replace_file(folder / name, self._store.local.read(blob), folder)
            _write_provenance(path.with_suffix(".json"), provenance, run)
            self.known_files.note(path.with_suffix(".json"), digests["json"])
            found_path = folder / f"{recipe}{FOUND}"
            if search := result.get(FoundQuantization):
                content = found_recipe(result, search)
                digests[FOUND[1:]] = digest_bytes(content)
                if self.known_files.sha256(found_path) != digests[FOUND[1:]]:
                    replace_file(found_path, content, folder)
            else:
                found_path.unlink(missing_ok=True)
        for outdated in (rejected, rejected.with_suffix(".ptd")):
            with convert_os_errors(StoreUnusable, f"cannot remove {outdated}, which is out of date"):
                outdated.unlink(missing_ok=True)
        return replace(result, path=path, digests=digests)

    def has(self, model: str, recipes: Iterable[Delivered]) -> bool:
        """Whether the files of a model's recipes and their assets exist, and no other files of these recipes."""
        folder = self.out / model
        try:
            names = os.listdir(folder)  # noqa: PTH208 - a rerun looks at thousands of files: no `Path`
        except OSError:
            return False
        for result in recipes:
            files = {f"{result.recipe}.{ending}": digest for ending, digest in result.digests.items()}
            if {name for name in names if name.startswith(f"{result.recipe}.")} != files.keys():
                return False
            files |= result.assets
            if not all(self.known_files.knows(f"{folder}/{name}", digest) for name, digest in files.items()):
                return False
        return True

    def keep_rejected(self, model: str, recipe: str, file: ArtifactRef, data: ArtifactRef | None) -> Path:
        """Writes ``<recipe>.rejected.pte`` and its `.ptd` in place of a good file; raises as `publish`."""
        path = self.out / model / f"{recipe}.rejected.pte"
        with convert_os_errors(StoreUnusable, f"cannot write {path}", "choose another --out folder"):
            self._write_files(file, data, path)
            if self.has_file(model, recipe, file):
                for ending in (".pte", ".ptd", ".json"):
                    (self.out / model / f"{recipe}{ending}").unlink(missing_ok=True)
        return path

    def has_file(self, model: str, recipe: str, file: ArtifactRef) -> bool:
        """Whether this file of a recipe exists under the name of a verified one."""
        self._store.fetch(file)
        return self.known_files.sha256(self.out / model / f"{recipe}.pte") == payload_sha256(file, self._store.local)

    def publish_debug_files(self, result: Delivered, payloads: Iterable[str]) -> None:
        """Writes ``<recipe>.debug.json`` and ``<recipe>.etrecord``, or ``<recipe>.<payload>.etrecord`` for fat files.

        Removes other such files of the recipe, whose payloads may have the names `payloads`: an ETRecord does not name
        the file that it describes. Raises StoreUnusable if the folder cannot be written.
        """
        store, start = self._store, self.out / result.model / result.recipe
        records = {payload: Path(f"{start}{payload and '.'}{payload}.etrecord") for payload in ("", *payloads)}
        maps_path = Path(f"{start}.debug.json")
        maps: dict[str, dict[str, Any]] = {}
        with convert_os_errors(StoreUnusable, f"cannot write next to {start}.pte"):
            for payload, outputs in result.debugging.items():
                record = outputs.pop("etrecord")
                path = records.pop(payload)
                for ref in outputs.values():
                    store.fetch(ref)
                if not (path.is_file() and digest_file(path) == record.root.digest):
                    store.fetch(record)
                    path.write_bytes(store.local.read_artifact(record))
                maps[payload] = {role: json.loads(store.local.read_artifact(ref)) for role, ref in outputs.items()}
            if maps:
                _write_json(maps_path, maps.get("", maps))
            for outdated in (*records.values(), *(() if maps else (maps_path,))):
                outdated.unlink(missing_ok=True)

    def _write_files(self, file: ArtifactRef, data: ArtifactRef | None, path: Path) -> None:
        """Writes a `.pte` and its `.ptd`; removes an earlier `.ptd`, which would be taken for this file's."""
        if not data:
            path.with_suffix(".ptd").unlink(missing_ok=True)
        for payload, target in ((data, path.with_suffix(".ptd")), (file, path)):
            if payload:
                self._store.fetch(payload)
                if self.known_files.sha256(target) != payload_sha256(payload, self._store.local):
                    write_payload(payload, self._store.local, target)


def found_recipe(result: Delivered, search: FoundQuantization) -> bytes:
    """YAML of a recipe that makes the file that a search has found, without searching again."""
    passes = sum(attempt.passes for attempt in search.attempts)
    comment = f"Found for {result.model!r}: {len(search.attempts)} files were scored, {passes} of them passed."
    quantize = {"search": None, "exclude": list(search.exclude)}
    quantize |= search.variant
    report = result.get(AccuracyReport)
    bounds = {"max_drop": report.max_drop, "keep": report.keep} if report else {}
    accuracy = {name: bound for name, bound in bounds.items() if bound is not None}  # the search's may be the only ones
    recipe = {f"{result.recipe}-found": {"extends": result.recipe, "accuracy": accuracy, "quantize": quantize}}
    return f"# {comment}\n{yaml.safe_dump({'recipes': recipe}, sort_keys=False)}".encode()


def _write_provenance(path: Path, provenance: _Json, run: _Json) -> None:
    try:
        with open_input(path) as file:
            written = json.loads(file.read())
        earlier = written.pop("run")
        same = written == provenance and earlier.keys() == run.keys()
        same = same and earlier.get("findings") == run.get("findings")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no file, or not what a run has written
        same = False
    if not same:
        _write_json(path, {**provenance, "run": run})


def _write_json(path: Path, value: Any) -> None:
    content = (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
    if not (path.is_file() and path.read_bytes() == content):
        replace_file(path, content, path.parent)


@dataclass(frozen=True)
class Publication:
    """URL and conditions of a run's release; `skipped` is the reason if this run makes none."""

    url: str
    channel: str = "latest"
    keep: int = 30
    gates: tuple[Limit, ...] = ()
    key: Path | None = None
    skipped: str = ""

    @classmethod
    def of(cls, config: PublishConfig) -> Publication:
        """Raises InputError if the gates cannot be understood, there is no key, or nobody is logged in to the Hub."""
        from ..reports.comparison import parse_limits  # noqa: PLC0415 - see above
        from .records import check_key  # noqa: PLC0415 - see above

        if config.sign:
            check_key(config.sign)
        if config.url.startswith("hf://"):
            from ...artifacts.hub_files import check_login  # noqa: PLC0415 - see above

            check_login(config.url)
        gates = parse_limits(config.gates) if config.gates else ()
        return cls(config.url, config.channel, config.keep, gates, config.sign)

    def publish(self, contents: ReleaseContents) -> Published:
        """Raises as `releases.Releases.publish`."""
        from .releases import Releases  # noqa: PLC0415 - see above

        releases = Releases(self.url)
        return releases.publish(contents, channel=self.channel, keep=self.keep, gates=self.gates, key=self.key)

    def outcome(self, published: Published | None) -> ReleaseOutcome | None:
        """The release in a run's record; None if the run should make none."""
        if published:
            held_back = bool(published.regressions)
            return ReleaseOutcome(self.url, self.channel, published.release, published.reasons, held_back)
        return None if self.skipped else self.failed(_INCOMPLETE)

    def failed(self, reason: str) -> ReleaseOutcome:
        """The release in a run's record, if it could not be made."""
        return ReleaseOutcome(self.url, self.channel, reasons=(reason,))

    def publish_results(self, results: Sequence[Delivered], record: RunRecord) -> Published | None:
        """Releases the files of a run that made all of them, else logs the reason. Raises as `publish`."""
        if reason := self.skipped or (_INCOMPLETE if any(result.failure for result in results) else ""):
            _log.warning("nothing is published: %s", reason)
            return None
        from .contents import read_contents  # noqa: PLC0415 - see above

        files: dict[str, dict[str, Path]] = {}
        for result in results:
            if result.path:
                files.setdefault(result.model, {})[result.recipe] = result.path
        return self.publish(read_contents(record.zoo, files, [record]))
