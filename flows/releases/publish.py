"""Writes produced files to the user's folder, atomically and only what has changed, and releases them if asked to."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ...artifacts.digest import Digest, digest_bytes, digest_file, digest_json
from ...artifacts.files import open_input, replace_file
from ...artifacts.known_files import KnownFiles
from ...artifacts.ref import ArtifactRef
from ...artifacts.runs import ReleaseOutcome, RunRecord
from ...artifacts.store import Store
from ...configs.load import LoadedZoo
from ...configs.zoo import PublishConfig
from ...errors import InputError, StoreUnusable, convert_os_errors
from ...tasks.codecs.payload import asset_blobs, payload_sha256, write_payload
from ...tasks.results.delivered import Delivered
from ...tasks.results.numerics import FoundLayers
from ..reports.figures_text import FOUND
from ..run.outcome import ZooOutcome
from ..run.request import ExportRequest, absolute_place

if TYPE_CHECKING:  # these import fsspec and readers of files, which runs without a release do without
    from ..reports.comparison import Limit
    from .contents import ReleaseContents
    from .records import Published


_log = logging.getLogger(__name__)

_INCOMPLETE = "not all files were made"


def known_results(store: Store, folder: Path) -> KnownFiles:
    """What is known of the files in a folder for results."""
    return KnownFiles(store.local.root, f"published/{digest_bytes(str(folder).encode())}")


def check_folders(folders: Iterable[Path]) -> None:
    """Raises InputError, before any work, if a folder for results does not exist and cannot be created."""
    for folder in folders:
        place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not place.is_dir():
            raise InputError(f"results cannot be written to {folder}: {place} is not a folder; choose another --out")
        if not os.access(place, os.W_OK | os.X_OK):
            raise InputError(f"results cannot be written to {folder}: {place} is read-only; choose another --out")


def publish(store: Store, made: Delivered, provenance: Mapping[str, Any], folder: Path, known: KnownFiles) -> Delivered:
    """Writes `<recipe>.pte`, `.ptd`, `.json`, `.found.yaml` and assets to `<out>/<model>`; returns where, and digests.

    Removes an earlier rejected file.

    `provenance` has the run under ``run``; if an earlier run wrote the same of the same file, its provenance stays.
    Creates the folder if needed; raises StoreUnusable if it cannot be written.
    """
    recipe, parts = made.recipe, made.parts
    path, rejected = folder / f"{recipe}.pte", folder / f"{recipe}.rejected.pte"
    without_run = {name: value for name, value in provenance.items() if name != "run"}  # it decides nothing
    digests = {**made.digests, "json": digest_json(without_run)}
    with _write_errors(path):
        _write_files(store, parts["file"], parts.get("data"), path, known)
        if "assets" in parts:
            _write_assets(store, parts["assets"], folder, known)
        _write_provenance(folder / f"{recipe}.json", provenance)
        known.note(folder / f"{recipe}.json", digests["json"])
        if made.search:
            digests[FOUND[1:]] = _write_found(folder / f"{recipe}{FOUND}", made, made.search, known)
        else:
            (folder / f"{recipe}{FOUND}").unlink(missing_ok=True)
    for outdated in (rejected, rejected.with_suffix(".ptd")):
        with convert_os_errors(StoreUnusable, f"cannot remove {outdated}, which is out of date"):
            outdated.unlink(missing_ok=True)
    return replace(made, path=path, digests=digests)


def found_recipe(made: Delivered, search: FoundLayers) -> bytes:
    """YAML of a recipe that makes the file that a search has found, without searching again."""
    passes = sum(attempt.passes for attempt in search.attempts)
    comment = f"Found for {made.model!r}: {len(search.attempts)} files were scored, {passes} of them passed."
    quantize = {"search": None, "exclude": list(search.exclude)}
    written = yaml.safe_dump(
        {"recipes": {f"{made.recipe}-found": {"extends": made.recipe, "quantize": quantize}}}, sort_keys=False
    )
    return f"# {comment}\n{written}".encode()


def is_published(folder: Path, recipes: Iterable[Delivered], known: KnownFiles) -> bool:
    """Whether a folder has the files of recipes and their assets, and no other files of these recipes."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a rerun looks at thousands of files: no `Path`
    except OSError:
        return False
    for made in recipes:
        recipe, files = made.recipe, made.digests
        there = {name for name in names if name.startswith(f"{recipe}.")}
        if there != {f"{recipe}.{ending}" for ending in files}:
            return False
        if not all(known.knows(f"{folder}/{recipe}.{ending}", digest) for ending, digest in files.items()):
            return False
        if not all(known.knows(f"{folder}/{name}", digest) for name, digest in made.assets.items()):
            return False
    return True


def keep_rejected(
    store: Store, file: ArtifactRef, data: ArtifactRef | None, folder: Path, recipe: str, known: KnownFiles
) -> Path:
    """Writes a rejected file as ``<recipe>.rejected.pte``, with its `.ptd`; returns the path. Raises as `publish`."""
    path = folder / f"{recipe}.rejected.pte"
    with _write_errors(path):
        _write_files(store, file, data, path, known)
    return path


def publish_debug_files(store: Store, made: Delivered, folder: Path, payloads: Iterable[str]) -> None:
    """Writes ``<recipe>.etrecord`` and ``<recipe>.debug.json``; for fat files ``<recipe>.<payload>.etrecord`` each.

    Earlier files that are not written again are removed: an ETRecord does not name the file that it describes.

    `payloads` are all names that payloads of the recipe may have. Raises StoreUnusable if the folder cannot be written.
    """
    recipe = made.recipe
    records = {payload: folder / f"{recipe}{payload and '.'}{payload}.etrecord" for payload in ("", *payloads)}
    maps_path = folder / f"{recipe}.debug.json"
    maps: dict[str, dict[str, Any]] = {}
    with convert_os_errors(StoreUnusable, f"cannot write next to {folder / recipe}.pte"):
        for payload, outputs in made.debugging.items():
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


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    with convert_os_errors(StoreUnusable, f"cannot write {path}", "choose another --out folder"):
        yield


def _write_files(store: Store, file: ArtifactRef, data: ArtifactRef | None, path: Path, known: KnownFiles) -> None:
    """Writes a `.pte` and its `.ptd`. Without one, an earlier `.ptd` is removed: it would be taken for this file's."""
    sibling = path.with_suffix(".ptd")
    if data:
        _write_payload(store, data, sibling, known)
    else:
        sibling.unlink(missing_ok=True)
    _write_payload(store, file, path, known)


def _write_assets(store: Store, assets: ArtifactRef, folder: Path, known: KnownFiles) -> None:
    store.fetch(assets)
    for name, blob in asset_blobs(assets, store.local).items():
        if known.sha256(folder / name) != blob.digest:
            replace_file(folder / name, store.local.read(blob), folder)


def _write_payload(store: Store, payload: ArtifactRef, path: Path, known: KnownFiles) -> None:
    store.fetch(payload)
    if known.sha256(path) != payload_sha256(payload, store.local):
        write_payload(payload, store.local, path)


def _write_provenance(path: Path, provenance: Mapping[str, Any]) -> None:
    try:
        with open_input(path) as file:
            written = json.loads(file.read())
        same = written["run"].keys() == provenance["run"].keys()
        same = same and written | {"run": provenance["run"]} == provenance
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # no file, or not what a run has written
        same = False
    if not same:
        _write_json(path, provenance)


def _write_found(path: Path, made: Delivered, search: FoundLayers, known: KnownFiles) -> Digest:
    content = found_recipe(made, search)
    if known.sha256(path) != (digest := digest_bytes(content)):
        replace_file(path, content, path.parent)
    return digest


def _write_json(path: Path, value: Any) -> None:
    content = (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
    if not (path.is_file() and path.read_bytes() == content):
        replace_file(path, content, path.parent)


@dataclass(frozen=True)
class Publication:
    """Where releases are made, and how; `skipped` is why this run makes none."""

    url: str
    channel: str = "latest"
    keep: int = 30
    gates: tuple[Limit, ...] = ()
    key: Path | None = None
    skipped: str = ""

    @classmethod
    def of(cls, config: PublishConfig) -> Publication:
        """Raises InputError if the gates cannot be understood, or there is no key."""
        from ..reports.comparison import parse_limits  # noqa: PLC0415 - see above
        from .records import check_key  # noqa: PLC0415 - see above

        if config.sign:
            check_key(config.sign)
        gates = parse_limits(config.gates) if config.gates else ()
        return cls(config.url, config.channel, config.keep, gates, config.sign)

    def publish(self, contents: ReleaseContents) -> Published:
        """Raises as `releases.Releases.publish`."""
        from .releases import Releases  # noqa: PLC0415 - see above

        releases = Releases(self.url)
        return releases.publish(contents, channel=self.channel, keep=self.keep, gates=self.gates, key=self.key)

    def outcome(self, published: Published | None) -> ReleaseOutcome | None:
        """What a run's record says of its release; None for a run that was to make none."""
        if published:
            held_back = bool(published.regressions)
            return ReleaseOutcome(self.url, self.channel, published.release, published.reasons, held_back)
        return None if self.skipped else self.failed(_INCOMPLETE)

    def failed(self, reason: str) -> ReleaseOutcome:
        """The same, where none could be made."""
        return ReleaseOutcome(self.url, self.channel, reasons=(reason,))

    def publish_results(self, outcome: ZooOutcome, record: RunRecord) -> Published | None:
        """Releases the files of a run that made all of them, else logs why not. Raises as `publish`."""
        if reason := self.skipped or (outcome.failures and _INCOMPLETE):
            _log.warning("nothing is published: %s", reason)
            return None
        from .contents import read_contents  # noqa: PLC0415 - see above

        files: dict[str, dict[str, Path]] = {}
        for made in outcome.recipes:
            if made.path:
                files.setdefault(made.model, {})[made.recipe] = made.path
        return self.publish(read_contents(record.zoo, files, [record]))


def publication_of(loaded: LoadedZoo, request: ExportRequest) -> Publication | None:
    """What a run publishes. Only a whole run does so without being asked.

    Raises InputError, before any work, if that cannot be done.
    """
    config, url = loaded.zoo.publish, request.publish and absolute_place(request.publish)
    if url:
        config = config.model_copy(update={"url": url}) if config else PublishConfig(url=url)
    if config is None:
        return None
    parts = [name for name in ("models", "recipes") if getattr(request, name) != "*"]
    parts += [name for name in ("until", "debug") if getattr(request, name)]
    if parts and not url:
        return Publication(
            config.url, skipped=f"it was not a whole run ({', '.join(parts)}); use --publish URL to do so"
        )
    try:
        return Publication.of(config)
    except InputError as error:
        raise loaded.locations.error(str(error), ("publish",)) from error
