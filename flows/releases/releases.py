"""Releases of zoos below a URL: immutable, named by channels that move atomically.

============================  ==========================================================================================
``files/<sha256>``            `.pte`, `.ptd`, assets and model cards, by content
``releases/<name>.json``      a `Manifest`, never changed; its name is ``<time>-<first digits of its SHA-256>``
``signatures/<name>.json``    the signature of a manifest, if it was signed
``channels/<name>.json``      a `Channel`: the release that people get
============================  ==========================================================================================

In a repository of the Hugging Face Hub, a change is one commit. Elsewhere, a file is written after the files that it
names and removed before them, so readers of a channel find a whole release even if a writer stops halfway.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, TypeVar

from ...artifacts.digest import Digest, canonical_json, digest_bytes, digest_file
from ...artifacts.files import staging_file
from ...artifacts.hub_files import HubFiles, open_files
from ...artifacts.lease import Lease, LocalLeases, RemoteLeases
from ...artifacts.records import Record
from ...artifacts.store import cache_folder
from ...configs.base import NAME_PATTERN
from ...errors import InputError, ReleaseDamaged, StoreError, StoreUnusable, convert_os_errors
from ..reports.comparison import Limit, regressions
from . import records
from .contents import ReleaseContents, show_release

_log = logging.getLogger(__name__)

_DIGITS = 12
_PREVIOUS = 20
_LEASE = digest_bytes(b"publish")

_Record = TypeVar("_Record", bound=Record)


class Releases:
    """The releases below a URL. Every method raises StoreUnusable if it cannot be reached."""

    def __init__(self, url: str) -> None:
        """Opens a folder, or any URL that fsspec understands with the options of the artifact store."""
        address = url if "://" in url else f"file://{Path(url).expanduser().absolute()}"
        self._files = open_files(address)
        self.url = self._files.url if "://" in url else url
        local = LocalLeases(cache_folder() / "releases" / digest_bytes(address.encode())[:16])
        self._leases = RemoteLeases(self._files, local)

    def _changes(self, message: str) -> AbstractContextManager[Lease | None]:
        """Makes changes within a lease, or as a commit with this message in a repository."""
        return self._files.commit(message) if isinstance(self._files, HubFiles) else self._leases.hold(_LEASE)

    def names(self) -> list[str]:
        """All releases, the oldest first."""
        return self._stems("releases")

    def signed(self) -> list[str]:
        return self._stems("signatures")

    def channels(self) -> dict[str, records.Channel]:
        by_name = {name: self.channel(name) for name in self._stems("channels")}
        return {name: channel for name, channel in by_name.items() if channel}

    def channel(self, name: str) -> records.Channel | None:
        """None if there is no such channel; raises ReleaseDamaged if it cannot be understood."""
        content = self._files.read(f"channels/{name}.json")
        return None if content is None else _decode(records.Channel, content, f"the channel {name!r} at {self.url}")

    def manifest(self, release: str, public_key: Path | None = None) -> records.Manifest:
        """The manifest of a release. With `public_key`, checks its signature first.

        InputError if there is none or it is not signed; ReleaseDamaged if it was changed, or its signature is wrong.
        """
        content = self._read(release)
        if public_key:
            signature = self._files.read(f"signatures/{release}.json")
            if signature is None:
                raise InputError(f"the release {release} at {self.url} is not signed; publish it with --sign KEY")
            records.verify_manifest(content, signature, public_key, release)
        what = f"the release {release} at {self.url}"
        if not digest_bytes(content).startswith(release.rpartition("-")[2]):
            raise ReleaseDamaged(f"{what} was changed after it was published; publish again, and do not use it")
        manifest = _decode(records.Manifest, content, what)
        if manifest.version != records.VERSION:
            raise ReleaseDamaged(
                f"{what} is in version {manifest.version} of the format, and this is version {records.VERSION}"
            )
        return manifest

    def find(self, text: str) -> str:
        """The release that a channel names, or the one with this name, or the only one whose name has this text."""
        if re.fullmatch(NAME_PATTERN, text) and (channel := self.channel(text)):
            return channel.release
        names = self.names()
        matching = [name for name in names if name == text] or [name for name in names if text in name]
        if len(matching) == 1:
            return matching[0]
        if matching:
            several = ", ".join(matching)
            raise InputError(f"{text!r} is part of {len(matching)} releases' names at {self.url}: {several}")
        channels = ", ".join(self.channels()) or "none"
        raise InputError(
            f"there is no channel or release {text!r} at {self.url} (channels: {channels}); "
            f"see: pteforge release list {self.url}"
        )

    def publish(
        self,
        contents: ReleaseContents,
        *,
        channel: str = "latest",
        keep: int = 30,
        gates: Sequence[Limit] = (),
        key: Path | None = None,
    ) -> records.Published:
        """Makes a release, and moves the channel to it unless gates forbid it, or it was rolled back from.

        Reuses the channel's release, the newest one, or one that was rolled back from, if it has exactly these files.
        Then removes all but the newest `keep` releases and those of channels. The private `key` signs the release.
        Raises InputError for an unusable channel or key, LeaseLost if somebody else publishes here, since the store was
        out of reach for this process alone, and ReleaseDamaged if the channel or its release cannot be understood.
        """
        check_channel(channel)
        with self._changes(f"Publish {contents.zoo}") as lease:
            present = self.channel(channel)
            before = self.manifest(present.release) if present else None
            self._upload(contents)
            same = self._same(contents, present, signed=key is not None)
            release = same or self._add(contents, key)
            files_before = dict(before.files) if before else {}
            problems = [
                problem
                for name, file in contents.files
                if gates and name in files_before
                for problem in regressions(files_before[name].result, file.result, gates)
            ]
            named = present is not None and present.release == release
            files = records.digest_files(contents.models)
            withdrawn = present is not None and not named and present.withdrew(release, files)
            moved = not (problems or withdrawn or named)
            if moved:
                if lease:
                    lease.check()  # uploading takes long, and the store may have been out of reach
                present = self._move(channel, release, _history(present), present.withdrawn if present else {})
            missing = files_before.keys() - {name for name, _ in contents.files}
            try:
                removed = self._remove_old(keep, release)
            except (StoreError, ReleaseDamaged) as error:
                _log.warning("old releases at %s are not removed: %s", self.url, error)
                removed = ()
        return records.Published(
            self.url,
            release,
            channel,
            new=same is None,
            moved=moved,
            regressions=tuple(problems),
            missing=tuple(sorted(missing)),
            removed=removed,
            current=present.release if present else "",
            withdrawn=withdrawn,
        )

    def promote(self, release: str, channel: str) -> records.Channel:
        """Moves a channel to a release that `find` finds. Raises as `manifest`, or if one of its files is gone.

        Going back to a release that the channel has left withdraws the present one.
        """
        check_channel(channel)
        with self._changes(f"Promote {release} to {channel}"):
            name, present = self.find(release), self.channel(channel)
            if present and present.release == name:
                return present
            self._check_whole(name)
            back = present is not None and name in present.previous and name < present.release
            return self._move(channel, name, _history(present), self._withdrawn(present, name, back=back))

    def roll_back(self, channel: str) -> records.Channel:
        """Moves a channel back to the release that it named before, and withdraws the present one.

        Publishing does not move it to a withdrawn release, or one with its files. InputError if there is none before.
        """
        with self._changes(f"Roll back {channel}"):
            present = self.channel(channel)
            if present is None:
                there = ", ".join(self.channels()) or "none"
                raise InputError(f"there is no channel {channel!r} at {self.url} (there: {there})")
            kept = self.names()
            earlier = [name for name in present.previous if name in kept]
            if not earlier:
                raise InputError(
                    f"the channel {channel!r} at {self.url} has named no release that is still there before "
                    f"{present.release}; choose one with: pteforge release promote {self.url} RELEASE"
                )
            self._check_whole(earlier[0])
            return self._move(channel, earlier[0], earlier[1:], self._withdrawn(present, earlier[0], back=True))

    def fetch(self, release: str, pattern: str, folder: Path, *, public_key: Path | None = None) -> list[Path]:
        """Downloads ``MODEL/RECIPE`` (a name or a glob) in the layout of `pteforge export`, with assets and cards.

        Checks each file while downloading, and names it when it is complete; with `public_key`, checks the signature
        first. Returns the paths of the `.pte` files. Raises InputError if nothing matches, the folder cannot be written
        or the release is not signed, and ReleaseDamaged for changed files and manifests, and other signatures.
        """
        manifest = self.manifest(release, public_key)
        chosen = {name: file for name, file in manifest.files if fnmatchcase(name, pattern)}
        if not chosen:
            names = ", ".join(name for name, _ in manifest.files)
            raise InputError(f"nothing in the release {release} at {self.url} matches {pattern!r}; it has {names}")
        for model in dict.fromkeys(name.partition("/")[0] for name in chosen):
            released = manifest.models[model]
            assets = {folder / model / name: content for name, content in released.assets.items()}
            self._fetch({folder / model / "card.md": released.card, **assets})
        return [self.fetch_file(file, folder / f"{name}.pte") for name, file in chosen.items()]

    def fetch_file(self, released: records.ReleasedFile, path: Path) -> Path:
        """Downloads one file, with its `.ptd` and provenance next to it; raises as `fetch`."""
        parts = {path.with_suffix(".ptd"): released.data} if released.data else {}
        self._fetch({**parts, path: released.file})
        if not released.data:
            path.with_suffix(".ptd").unlink(missing_ok=True)  # it would be taken for this file's
        text = json.dumps(released.provenance, indent=2, sort_keys=True) + "\n"
        path.with_suffix(".json").write_text(text, encoding="utf-8")
        return path

    def _stems(self, folder: str) -> list[str]:
        return [PurePosixPath(name).stem for name in self._files.names(folder)]

    def _read(self, release: str) -> bytes:
        content = self._files.read(f"releases/{release}.json")
        if content is None:
            raise InputError(f"there is no release {release} at {self.url}; see: pteforge release list {self.url}")
        return content

    def _upload(self, contents: ReleaseContents) -> None:
        """Writes the files that are not there yet."""
        there = self._sizes()
        for content, source in contents.sources.items():
            name = f"files/{content.sha256}"
            if there.get(content.sha256) == content.size:
                continue
            if isinstance(source, Path):
                self._files.upload(source, name)
            else:
                self._files.write(name, source)
            written = self._files.find(name)
            if written is None or written.size != content.size:
                raise StoreUnusable(f"{name} at {self.url} is not complete after it was written; publish again")

    def _sizes(self) -> Mapping[str, int]:
        """Bytes of all contents, by SHA-256."""
        return {PurePosixPath(file.name).name: file.size for file in self._files.list("files")}

    def _same(self, contents: ReleaseContents, present: records.Channel | None, *, signed: bool) -> str | None:
        """The channel's, newest or a withdrawn release with exactly these files (signed, if `signed`), if any."""
        wanted, names = _comparable(contents.models), self.names()
        candidates = [present.release, *(name for name in names if name in present.withdrawn)] if present else []
        for name in dict.fromkeys([*candidates, *names[-1:]]):
            try:
                same = _comparable(self.manifest(name).models) == wanted
            except ReleaseDamaged:
                continue
            if same and (not signed or name in self.signed()):
                return name
        return None

    def _add(self, contents: ReleaseContents, key: Path | None) -> str:
        now = datetime.now(UTC)
        published = now.isoformat(timespec="milliseconds")
        content = records.Manifest(records.VERSION, contents.zoo, published, contents.run, contents.models).encode()
        name = f"{now:%Y%m%dT%H%M%S.%f}-{digest_bytes(content)[:_DIGITS]}"
        if key:
            self._files.write(f"signatures/{name}.json", records.sign_manifest(content, key))
        self._files.write(f"releases/{name}.json", content)
        return name

    def _withdrawn(
        self, present: records.Channel | None, target: str, *, back: bool
    ) -> dict[str, Digest | Literal[""]]:
        """Withdrawn releases after moving a channel to `target`, with the present one if that goes back."""
        if present is None:
            return {}
        withdrawn = dict(present.withdrawn)
        if back:
            withdrawn[present.release] = self._files_of(present.release)
        files = self._files_of(target)
        return {name: other for name, other in withdrawn.items() if name != target and (other != files or not other)}

    def _files_of(self, release: str) -> Digest | Literal[""]:
        """The digest of a release's files; empty if its manifest is gone or damaged."""
        try:
            return records.digest_files(self.manifest(release).models)
        except StoreUnusable:
            raise
        except (InputError, ReleaseDamaged):
            return ""

    def _move(
        self, channel: str, release: str, previous: Sequence[str], withdrawn: Mapping[str, Digest | Literal[""]]
    ) -> records.Channel:
        moved = datetime.now(UTC).isoformat(timespec="milliseconds")
        digest = digest_bytes(self._read(release))
        named = records.Channel(release, digest, moved, tuple(previous)[:_PREVIOUS], withdrawn)
        self._files.write(f"channels/{channel}.json", named.encode())
        if isinstance(self._files, HubFiles) and (channel == "latest" or not self.channels().keys() - {channel}):
            show_release(self._files, self.manifest(release))
        return named

    def _check_whole(self, release: str) -> None:
        there = self._sizes()
        manifest = self.manifest(release)
        wanted = [(name, content) for name, file in manifest.files for content in file.contents]
        for model, released in manifest.models.items():
            wanted += [(f"{model}/{name}", content) for name, content in released.assets.items()]
        for name, content in wanted:
            if there.get(content.sha256) != content.size:
                raise ReleaseDamaged(f"the file {name} of the release {release} is not at {self.url} any more")

    def _remove_old(self, keep: int, newest: str) -> tuple[str, ...]:
        """Removes old releases, and then the files that no remaining one names."""
        named = {newest}
        for channel in self.channels().values():
            named |= {channel.release, *channel.previous[:1]}
        names = self.names()
        old = [name for name in names[:-keep] if name not in named]
        for name in old:
            self._files.delete(f"releases/{name}.json")
        kept = [name for name in names if name not in old]
        needed = {content.sha256 for name in kept for content in self.manifest(name).contents}
        for name in set(self.signed()) - set(kept):
            self._files.delete(f"signatures/{name}.json")
        for sha256 in self._sizes().keys() - needed:
            self._files.delete(f"files/{sha256}")
        return tuple(old)

    def _fetch(self, parts: Mapping[Path, records.FileContent]) -> None:
        """Downloads files that are not there yet, and gives them their names when all are complete."""
        folder = next(iter(parts)).parent
        with convert_os_errors(InputError, f"cannot write to {folder}", "choose another folder"), ExitStack() as stack:
            folder.mkdir(parents=True, exist_ok=True)
            staged = {}
            for path, content in parts.items():
                if not (path.is_file() and digest_file(path) == content.sha256):
                    staged[path], file = stack.enter_context(staging_file(folder))
                    self._download(content, file, path.name)
                    file.flush()
            for path, part in staged.items():
                part.replace(path)

    def _download(self, content: records.FileContent, file: BinaryIO, name: str) -> None:
        digest = hashlib.sha256()
        try:
            for block in self._files.blocks(f"files/{content.sha256}", content.size):
                digest.update(block)
                file.write(block)
        except FileNotFoundError:
            raise ReleaseDamaged(f"{name} ({content.sha256}) is not at {self.url} any more; publish again") from None
        if digest.hexdigest() != content.sha256:
            raise ReleaseDamaged(f"{name} at {self.url} is damaged: its SHA-256 is not {content.sha256}; publish again")


def open_releases(url: str) -> Releases:
    """The releases at a URL; raises InputError for a folder that does not exist."""
    if "://" not in url and not Path(url).is_dir():
        raise InputError(f"there is no folder {url}; give the folder or URL that releases were published to")
    return Releases(url)


def open_release(text: str) -> tuple[Releases, str]:
    """The releases, and the name of the one that `split_release` takes from a text; InputError if there is none."""
    url, name = records.split_release(text)
    releases = open_releases(url)
    return releases, releases.find(name)


def check_channel(name: str) -> None:
    """Raises InputError for names that channels cannot have."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(f"{name!r} cannot be a channel; use letters, digits, '.', '_' and '-', such as stable")


def _history(present: records.Channel | None) -> tuple[str, ...]:
    """Releases to go back to, once the channel names another one."""
    return (present.release, *present.previous) if present else ()


def _comparable(models: Mapping[str, records.ReleasedModel]) -> bytes:
    return canonical_json({name: model.to_json() for name, model in models.items()})


def _decode(kind: type[_Record], content: bytes, what: str) -> _Record:
    try:
        return kind.decode(content)
    except ValueError as error:
        raise ReleaseDamaged(f"{what} cannot be understood: {error}") from error
