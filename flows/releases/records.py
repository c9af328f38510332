"""Records of releases: manifests and channels in JSON, and signatures in OpenSSF's model-signing format, by a key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from ...artifacts.digest import Digest, canonical_json, digest_json
from ...artifacts.records import Record, decode
from ...configs.base import NAME_PATTERN
from ...errors import InputError, ReleaseDamaged, first_line
from ...tasks.results.delivered import NO_PROVENANCE, Delivered, MethodCalls

VERSION = 1
"""Version of the format: readers reject others. New attributes with defaults do not change it."""

_DELEGATED: Any = tuple[MethodCalls, ...]
_Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]  # files are named after it
_MANIFEST = re.compile(r"(?:(?P<url>.+)/)?releases/(?P<name>[^/]+)\.json")


def split_release(text: str) -> tuple[str, str]:
    """Splits ``URL#RELEASE``, ``URL#CHANNEL`` or the address of a manifest into URL and name.

    A URL alone stands for the channel ``latest``.
    """
    if manifest := _MANIFEST.fullmatch(text):
        return manifest["url"] or ".", manifest["name"]
    url, mark, name = text.rpartition("#")
    return (url, name) if mark and not Path(text).exists() else (text, "latest")


def names_release(text: str) -> bool:
    """Whether a text names a release for `split_release`, not a file or folder of results or the id of a run."""
    url, _ = split_release(text)
    return "://" in text or url != text or all((Path(text) / name).is_dir() for name in ("releases", "files"))


@dataclass(frozen=True, slots=True)
class FileContent(Record):
    """A file by its SHA-256, and its size in bytes."""

    sha256: Digest
    size: int


@dataclass(frozen=True, slots=True)
class ReleasedFile(Record):
    """A `.pte`, its `.ptd` if it has one, its figures to compare, and the provenance from `pteforge export`."""

    file: FileContent
    data: FileContent | None
    figures: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def result(self) -> Delivered:
        """The file by its provenance and figures; raises ReleaseDamaged if they cannot be understood."""
        try:
            delegated = decode(_DELEGATED, canonical_json(self.figures["delegated"]))
            return replace(Delivered.of_provenance(self.provenance), delegated=delegated)
        except NO_PROVENANCE as error:
            raise ReleaseDamaged(f"the provenance of a file cannot be understood: {error}") from error

    @property
    def contents(self) -> tuple[FileContent, ...]:
        return (self.file, self.data) if self.data else (self.file,)

    @property
    def size(self) -> int:
        return sum(content.size for content in self.contents)


@dataclass(frozen=True, slots=True)
class ReleasedModel(Record):
    """A model's files by recipe, its card in Markdown, and its assets by name."""

    card: FileContent
    recipes: Mapping[_Name, ReleasedFile]
    assets: Mapping[_Name, FileContent] = field(default_factory=dict)


def files_of(models: Mapping[str, ReleasedModel]) -> Iterator[tuple[str, ReleasedFile]]:
    """``MODEL/RECIPE`` and its file."""
    for model, released in models.items():
        for recipe, file in released.recipes.items():
            yield f"{model}/{recipe}", file


def digest_files(models: Mapping[str, ReleasedModel]) -> Digest:
    """SHA-256 of a release's files: equal if all bytes are, whichever run made them."""
    files: dict[str, Any] = {
        f"{name}.pte": [content.sha256 for content in file.contents] for name, file in files_of(models)
    }
    for model, released in models.items():
        files |= {f"{model}/{name}": asset.sha256 for name, asset in released.assets.items()}
    return digest_json(files)


@dataclass(frozen=True, slots=True)
class Manifest(Record):
    """One release, with fields of the `artifacts.runs.RunRecord` of the run that made the files, empty if unknown."""

    version: int
    zoo: str
    published: str  # ISO 8601 in UTC
    run: Mapping[str, str]  # id, start, host, pteforge's version, git commit and zoo digest
    models: Mapping[_Name, ReleasedModel]  # by name

    @property
    def files(self) -> Iterator[tuple[str, ReleasedFile]]:
        return files_of(self.models)

    @property
    def contents(self) -> Iterator[FileContent]:
        """All contents of the release; one may come several times."""
        for model in self.models.values():
            yield model.card
            yield from model.assets.values()
        for _, file in self.files:
            yield from file.contents

    @property
    def size(self) -> int:
        """Bytes of all different contents."""
        return sum({content.sha256: content.size for content in self.contents}.values())


@dataclass(frozen=True, slots=True)
class Channel(Record):
    """The release that a channel names.

    `withdrawn` has releases that somebody moved the channel back from, with the digest of their files (`digest_files`),
    empty if unknown. Publishing never moves the channel to these files again.
    """

    release: _Name
    sha256: Digest  # of its manifest
    moved: str  # when the channel began to name it, ISO 8601 in UTC
    previous: tuple[_Name, ...] = ()  # releases that the channel named before, the newest first
    withdrawn: Mapping[_Name, Digest | Literal[""]] = field(default_factory=dict)

    def withdrew(self, release: str, files: Digest) -> bool:
        """Whether somebody moved the channel back from a release, or from another one with the same files."""
        return release in self.withdrawn or files in self.withdrawn.values()


@dataclass(frozen=True, slots=True)
class Published(Record):
    """The outcome of an attempt to publish."""

    url: str
    release: str
    channel: str
    new: bool  # whether this attempt made the release; otherwise exactly these files had been released before
    moved: bool  # whether this attempt moved the channel
    regressions: tuple[str, ...] = ()  # why gates kept the channel: a sentence per file and gate
    missing: tuple[str, ...] = ()  # MODEL/RECIPE in the channel's earlier release that this release lacks
    removed: tuple[str, ...] = ()  # old releases
    current: str = ""  # the release that the channel names now
    withdrawn: bool = False  # whether the channel stays because somebody moved it back from these files

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the channel does not name this release; empty if it does."""
        rolled_back = "these files are withdrawn: the channel was rolled back from them"
        withdrawn = f"{rolled_back}; to release them all the same: {self.acceptance}"
        return (*self.regressions, *([withdrawn] if self.withdrawn else []))

    @property
    def acceptance(self) -> str:
        """The command that moves the channel to this release."""
        return f"pteforge release promote {self.url} {self.release} --channel {self.channel}"

    def describe(self) -> str:
        """The outcome on one line, with the reasons if the channel stays where it is."""
        where = f"{self.release} at {self.url}"
        if self.reasons:
            kept = f"at {self.current}" if self.current else "where it is"
            return f"{where} is not {self.channel!r}, which stays {kept}: {'; '.join(self.reasons)}"
        return f"{where} is {self.channel!r}{'' if self.moved else ' already'}"


def check_key(key: Path) -> None:
    """Raises InputError, before any work, if a key is no file or signing is not installed."""
    _library()
    if not key.is_file():
        raise InputError(
            f"there is no key at {key}; make a pair with: openssl ecparam -name prime256v1 -genkey -noout -out {key}, "
            f"then openssl ec -in {key} -pubout -out {key.with_suffix('.pub')}"
        )


def sign_manifest(content: bytes, private_key: Path) -> bytes:
    """Signs a manifest: returns a Sigstore bundle as JSON. Raises InputError if the key cannot be used."""
    check_key(private_key)
    with _written(content) as (manifest, signature):
        try:
            signer = _library().signing.Config().use_elliptic_key_signer(private_key=private_key)
            signer.sign(manifest, signature)
        except Exception as error:
            raise InputError(f"{private_key} cannot sign: {first_line(error)}; give an elliptic-curve key") from error
        return signature.read_bytes()


def verify_manifest(content: bytes, signature: bytes, public_key: Path, release: str) -> None:
    """Raises ReleaseDamaged unless the signature is for this content and made with the private part of the key."""
    check_key(public_key)
    with _written(content) as (manifest, bundle):
        bundle.write_bytes(signature)
        try:
            verifier = _library().verifying.Config().use_elliptic_key_verifier(public_key=public_key)
        except Exception as error:
            raise InputError(f"{public_key} is not a public key: {first_line(error)}") from error
        try:
            verifier.verify(manifest, bundle)
        except Exception as error:
            raise ReleaseDamaged(
                f"the signature of release {release} does not fit {public_key}: {first_line(error)}; do not use it"
            ) from error


@contextmanager
def _written(content: bytes) -> Iterator[tuple[Path, Path]]:
    """The manifest as a file in a private folder, and the path of its signature."""
    with TemporaryDirectory(prefix="pteforge-") as folder:
        manifest = Path(folder) / "release" / "release.json"
        manifest.parent.mkdir()
        manifest.write_bytes(content)
        yield manifest, Path(folder) / "signature"


def _library() -> Any:
    try:
        import model_signing  # noqa: PLC0415 - an extra, and slow
    except ImportError as error:
        raise InputError(
            f"signatures need a package that is not installed: {error}; pip install 'pteforge[signing]'"
        ) from error
    return model_signing
