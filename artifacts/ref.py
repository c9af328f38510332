"""Refs, the small JSON-able names of artifacts, and the manifests of artifacts that consist of several objects."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pickle import PickleError
from typing import Any, Literal, NamedTuple

from pydantic import NonNegativeInt

from ..errors import StoreError
from .digest import Digest
from .records import Record


class BlobRef(NamedTuple):
    """One object of the store: `size` bytes whose SHA-256 is `digest`. In JSON it is ``[digest, size]``."""

    digest: Digest
    size: NonNegativeInt


@dataclass(frozen=True, slots=True)
class ArtifactRef(Record):
    """An artifact: immutable content in the store, and what it is.

    Attributes:
        kind: what the bytes are, for example ``program/aten`` or ``payload/pte``.
        root: the object that holds the artifact's content or, if `composite`, its manifest.
        identity: what stage keys hold. It is the root's digest, except for kinds with a canonical digest (programs),
            where equal meaning has equal identity even if the bytes differ.
    """

    kind: str
    root: BlobRef
    identity: Digest
    composite: bool = False


@dataclass(frozen=True, slots=True)
class ArtifactManifest(Record):
    """The root object of a composite artifact.

    Attributes:
        blobs: every other object of the artifact, without repeats, in order of first use.
        body: JSON from which the kind's codec puts the objects together.
    """

    kind: str
    blobs: tuple[BlobRef, ...]
    body: Any
    format: Literal[1] = 1


@contextmanager
def decoding(ref: ArtifactRef) -> Iterator[None]:
    """Raises StoreError for whatever a codec raises whose artifact has other content than it writes."""
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        EOFError,
        ImportError,
        LookupError,
        PickleError,
        RuntimeError,
        TypeError,
        ValueError,
        zlib.error,
    ) as error:
        problem = f"the {ref.kind} {ref.root.digest} cannot be loaded: {type(error).__name__}: {error}"
        raise StoreError(problem) from error
