"""What is stored of a release: manifests and channels, as JSON, and signatures.

Signatures are in the OpenSSF model-signing format, with an own key: no service is asked, and nothing is sent.
"""

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
"""Of the format: readers refuse other versions. A new attribute with a default does not need a new one."""

_DELEGATED: Any = tuple[MethodCalls, ...]
_Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]  # files are named after it


_MANIFEST = re.compile(r"(?:(?P<url>.+)/)?releases/(?P<name>[^/]+)\.json")


def split_release(text: str) -> tuple[str, str]:
    """URL and release of ``URL#RELEASE``, where it may also be a channel, or of the address of a manifest.

    An address alone stands for the channel ``latest``.
    """
    if found := _MANIFEST.fullmatch(text):
        return found["url"] or ".", found["name"]
    url, mark, name = text.rpartition("#")
    return (url, name) if mark and not Path(text).exists() else (text, "latest")


def names_release(text: str) -> bool:
    """Whether a text is for `split_release`, and neither a file or folder of results nor the id of a run."""
    url, _ = split_release(text)
    return "://" in text or url != text or all((Path(text) / name).is_dir() for name in ("releases", "files"))


@dataclass(frozen=True, slots=True)
class Content(Record):
    """A file by its SHA-256, and its size in bytes."""

    sha256: Digest
    size: int


@dataclass(frozen=True, slots=True)
class ReleasedFile(Record):
    """A `.pte`, its `.ptd` if it has one, what is compared of it, and what `pteforge export` wrote next to it."""

    file: Content
    data: Content | None
    figures: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def result(self) -> Delivered:
        """What its provenance and figures say; raises ReleaseDamaged if they cannot be understood."""
        try:
            delegated = decode(_DELEGATED, canonical_json(self.figures["delegated"]))
            return replace(Delivered.of_provenance(self.provenance), delegated=delegated)
        except NO_PROVENANCE as error:
            raise ReleaseDamaged(f"the provenance of a file cannot be understood: {error}") from error

    @property
    def contents(self) -> tuple[Content, ...]:
        return (self.file, self.data) if self.data else (self.file,)

    @property
    def size(self) -> int:
        return sum(content.size for content in self.contents)


@dataclass(frozen=True, slots=True)
class ReleasedModel(Record):
    """A model's files by recipe, its card in Markdown, and its assets by name."""

    card: Content
    recipes: Mapping[_Name, ReleasedFile]
    assets: Mapping[_Name, Content] = field(default_factory=dict)


def files_of(models: Mapping[str, ReleasedModel]) -> Iterator[tuple[str, ReleasedFile]]:
    """``MODEL/RECIPE`` and its file."""
    for model, released in models.items():
        for recipe, file in released.recipes.items():
            yield f"{model}/{recipe}", file


def digest_files(models: Mapping[str, ReleasedModel]) -> Digest:
    """SHA-256 of which files a release consists of: equal where all bytes are, whichever run made them, and when."""
    assets = {f"{model}/{name}": asset for model, of in models.items() for name, asset in of.assets.items()}
    files = {f"{name}.pte": [content.sha256 for content in file.contents] for name, file in files_of(models)}
    return digest_json({**files, **{name: asset.sha256 for name, asset in assets.items()}})


@dataclass(frozen=True, slots=True)
class Manifest(Record):
    """One release.

    Attributes:
        published: when, ISO 8601 in UTC.
        run: id, start, host, pteforge's version, git commit and zoo digest of the run that made the files, as in
            `artifacts.runs.RunRecord`; empty texts where that is not known.
        models: by name.
    """

    version: int
    zoo: str
    published: str
    run: Mapping[str, str]
    models: Mapping[_Name, ReleasedModel]

    @property
    def files(self) -> Iterator[tuple[str, ReleasedFile]]:
        """``MODEL/RECIPE`` and its file."""
        return files_of(self.models)

    @property
    def contents(self) -> Iterator[Content]:
        """Everything that the release consists of; a content may come several times."""
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

    Attributes:
        sha256: of its manifest.
        moved: when the channel began to name it, ISO 8601 in UTC.
        previous: releases that the channel named before, the newest first.
        withdrawn: releases that somebody moved the channel back from, with the digest of their files (`digest_files`),
            empty where it is not known. Publishing never moves the channel to these files again.
    """

    release: _Name
    sha256: Digest
    moved: str
    previous: tuple[_Name, ...] = ()
    withdrawn: Mapping[_Name, Digest | Literal[""]] = field(default_factory=dict)

    def withdrew(self, release: str, files: Digest) -> bool:
        """Whether somebody moved the channel back from a release, or from another one with the same files."""
        return release in self.withdrawn or files in self.withdrawn.values()


@dataclass(frozen=True, slots=True)
class Published(Record):
    """What became of an attempt to publish.

    Attributes:
        new: whether the release was made now; if not, just these files had been released before.
        moved: whether the channel names it because of this attempt.
        current: the release that the channel names now.
        regressions: why the channel stays where it is: a sentence per file and gate.
        withdrawn: whether the channel stays where it is because somebody moved it back from these files.
        missing: ``MODEL/RECIPE`` in the channel's release before this attempt that this release lacks.
        removed: old releases.
    """

    url: str
    release: str
    channel: str
    new: bool
    moved: bool
    regressions: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    current: str = ""
    withdrawn: bool = False

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
        """What became of it on one line, with the reasons if the channel stays where it is."""
        where = f"{self.release} at {self.url}"
        if self.reasons:
            place = f"at {self.current}" if self.current else "where it is"
            return f"{where} is not {self.channel!r}, which stays {place}: {'; '.join(self.reasons)}"
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
    """A signature: a Sigstore bundle as JSON. Raises InputError if the key cannot be used."""
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
