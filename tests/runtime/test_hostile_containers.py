"""Malformed containers: the library's reader under sanitizers, against the reader of the package."""

from __future__ import annotations

import hashlib
import random
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.nfat.container import read_container
from pteforge.artifacts.nfat.contents import Blob, Description, Extent, Manifest, Payload, Source
from pteforge.artifacts.nfat.v1 import pack_v1
from pteforge.artifacts.nfat.v2 import write_v2
from pteforge.errors import FileFormatError

pytestmark = pytest.mark.slow

_COUNT = 3000
"""Mutations of each version."""

_LARGE = 4 << 20
_BLOBS = (bytes(range(256)) * 5, hashlib.shake_256(b"blob").digest(777))
_INLINE = hashlib.shake_256(b"inline").digest(200)
_NAMED = {digest_bytes(blob): blob for blob in _BLOBS}


def _sound_v2() -> bytes:
    """A container with all sources, several blobs and extents that go on in memory."""
    extents = (
        Extent(0, 48, Source.INLINE, 16),
        Extent(48, 464, Source.ZEROS),
        Extent(512, 256, Source.BLOB, 256, 0),
        Extent(768, 256, Source.BLOB, 512, 0),
        Extent(1024, 100, Source.BLOB, 16, 1),
    )
    parts = [
        _INLINE[16:64],
        bytes(464),
        _BLOBS[0][256:768],
        _BLOBS[1][16:116],
    ]
    mixed = b"".join(parts)
    payloads = (
        Payload(Description("mixed", ("XnnpackBackend", "Other")), len(mixed), digest_bytes(mixed), extents),
        Payload(Description("future"), 77, digest_bytes(b""), (), features=4),
        Payload(
            Description("portable", executorch_version="1.5.1"),
            777,
            digest_bytes(_BLOBS[1]),
            (Extent(0, 777, Source.BLOB, 0, 1),),
        ),
    )
    blobs = tuple(Blob(digest_bytes(blob), len(blob)) for blob in _BLOBS)
    return write_v2(Manifest(payloads, blobs), _INLINE)


def _sound_v1() -> bytes:
    return pack_v1([("XnnpackBackend", b"first payload"), ("x" * 32, b""), ("portable", bytes(range(100)))])


_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 16, 24, 63, 64, 65, 255, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF)


def _mutations(sound: bytes, table: int, count: int) -> Iterator[bytes]:
    """The container itself, then ones with some things changed, most of them within the first `table` bytes."""
    yield sound
    chance = random.Random(len(sound))  # noqa: S311  # the same mutations each time
    for _ in range(count):
        changed = bytearray(sound)
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            at = chance.randrange(min(table, len(changed)) or 1)
            kind = chance.randrange(8)
            if kind < 2:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            elif kind < 4:
                at -= at % 4
                changed[at : at + 4] = struct.pack(
                    "<I", chance.choice((*_NUMBERS, len(changed), chance.randrange(999)))
                )
            elif kind < 5:
                at -= at % 4
                changed[at : at + 8] = struct.pack(
                    "<Q", chance.choice((*_NUMBERS, 2**48, 2**63, 2**64 - 16, 2**64 - 1))
                )
            elif kind < 6:
                number = int.from_bytes(changed[at : at + 2], "little") + chance.choice((-4, -2, -1, 1, 2, 4))
                changed[at : at + 2] = (number % 65536).to_bytes(2, "little")
            elif kind < 7:
                del changed[chance.randrange(len(changed)) if changed else 0 :]
            else:
                other = chance.randrange(len(changed) or 1)
                changed[at : at + 8] = changed[other : other + 8]
        yield bytes(changed)


def _of_package(content: bytes) -> str:
    """What the package's reader says, in the words of open_containers."""
    try:
        container = read_container(content, _NAMED)
    except FileFormatError as error:
        return f"refused: {error}"
    found = []
    for payload in container.payloads:
        verdict = "intact"
        if payload.features:
            verdict = "unknown"
        elif payload.size > _LARGE:
            verdict = "large"
        else:
            try:
                content = b"".join(container.chunks(payload))
            except FileFormatError:
                verdict = "missing"
            else:
                if payload.sha256 not in (None, hashlib.sha256(content).hexdigest()):
                    verdict = "damaged"
        found += [payload.name, verdict]
    return " ".join(["accepted", *found])


def _of_library(sanitized: Path, folder: Path, containers: Sequence[bytes]) -> list[str]:
    """What the library's reader says; a report of a sanitizer fails the test."""
    (folder / "containers").write_bytes(b"".join(struct.pack("<Q", len(each)) + each for each in containers))
    (folder / "blobs").write_bytes(
        b"".join(struct.pack("<Q", len(blob)) + key.encode() + blob for key, blob in _NAMED.items())
    )
    done = subprocess.run(
        [sanitized / "open_containers", folder / "containers", folder / "blobs"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ERROR: AddressSanitizer" not in done.stderr
    return done.stdout.splitlines()


def _differences(containers: Sequence[bytes], found: Sequence[str]) -> Mapping[bytes, tuple[str, str]]:
    differing = {}
    for content, library in zip(containers, found, strict=True):
        package = _of_package(content)
        same = package == library or (package.startswith("refused") and library.startswith("refused"))
        if not same and not _about_what_the_library_skips(package):
            differing[content] = (package, library)
    return differing


def _about_what_the_library_skips(verdict: str) -> bool:
    """Whether a container was refused for its metadata or names of methods, which readers may leave alone."""
    return verdict.startswith("refused") and any(word in verdict for word in ("method", "metadata", "note"))


@pytest.mark.parametrize("version", [1, 2])
def test_mutations(sanitized: Path, tmp_path: Path, version: int) -> None:
    """No sanitizer reports anything, ranges of payloads agree, and both readers say the same of every container."""
    sound = _sound_v1() if version == 1 else _sound_v2()
    table = 12 + 3 * 48 if version == 1 else len(sound) - len(_INLINE)
    containers = list(_mutations(sound, table, _COUNT))
    found = _of_library(sanitized, tmp_path, containers)
    assert found[0].startswith("accepted ")
    assert "damaged" not in found[0]
    assert _differences(containers, found) == {}
    verdicts = {line.split(" ", 1)[0] for line in found}
    assert verdicts == {"accepted", "refused:"}


@pytest.mark.parametrize("version", [1, 2])
def test_every_length(sanitized: Path, tmp_path: Path, version: int) -> None:
    """A container that is cut short anywhere, or has more behind it, is refused."""
    sound = _sound_v1() if version == 1 else _sound_v2()
    containers = [sound[:size] for size in range(len(sound))] + [sound + b"\x01"]
    assert all(line.startswith("refused: ") for line in _of_library(sanitized, tmp_path, containers))
