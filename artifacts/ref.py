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

    Stage keys hold its `identity`: the root's digest or, for programs, a canonical digest, so that programs of equal
    meaning have equal identities even if their bytes differ.
    """

    kind: str  # for example ``program/aten`` or ``payload/pte``
    root: BlobRef  # the content or, if `composite`, the manifest
    identity: Digest
    composite: bool = False


@dataclass(frozen=True, slots=True)
class ArtifactManifest(Record):
    """The root object of a composite artifact."""

    kind: str
    blobs: tuple[BlobRef, ...]  # every other object of the artifact, without repeats, in order of first use
    body: Any  # JSON from which the kind's codec puts the objects together
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
