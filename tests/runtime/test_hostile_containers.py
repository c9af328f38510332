"""Malformed containers: the library's reader under sanitizers, against the reader of the package; its SHA-256."""

import hashlib
import random
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.errors import FileFormatError
from pteforge.formats.nfat import slots_generated as slots
from pteforge.formats.nfat.container import pack_v1, read_container, write_v2
from pteforge.formats.nfat.contents import (
    Blob,
    Description,
    Manifest,
    MappedExtent,
    MatrixShape,
    Payload,
    Source,
    Transpose,
    parts_digest,
)
from pteforge.formats.nfat.conversions import halved, transposed
from pteforge.formats.nfat.manifest import _Reader
from pteforge.formats.pte.tables import TableView
from pteforge.tests.mutations import mutate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds

_CORPUS = Path(__file__).parents[1] / "formats" / "nfat" / "corpus"

_COUNT = 3000
"""Mutations of each version."""

_LARGE = 4 << 20
_BLOBS = (bytes(range(256)) * 5, hashlib.shake_256(b"blob").digest(777))
_INLINE = hashlib.shake_256(b"inline").digest(200)
_NAMED = {digest_bytes(blob): blob for blob in _BLOBS}


def _sound_v2() -> bytes:
    """A container with all sources, several blobs and extents that go on in memory."""
    extents = (
        MappedExtent(0, 48, Source.INLINE, 16),
        MappedExtent(48, 464, Source.ZEROS),
        MappedExtent(512, 256, Source.BLOB, 256, 0),
        MappedExtent(768, 256, Source.BLOB, 512, 0),
        MappedExtent(1024, 100, Source.BLOB, 16, 1),
    )
    mixed = _INLINE[16:64] + bytes(464) + _BLOBS[0][256:768] + _BLOBS[1][16:116]
    blobs = tuple(Blob(digest_bytes(blob), len(blob)) for blob in _BLOBS)
    parts = parts_digest(len(mixed), digest_bytes(mixed), extents, _INLINE, blobs)
    described, whole = Description("mixed", ("Other", "XnnpackBackend")), (MappedExtent(0, 777, Source.BLOB, 0, 1),)
    shapes = MatrixShape(2, 3, 4), MatrixShape(4, 2, 8)  # of 48 inline bytes, and of 256 of a blob
    transposes = Transpose(0, shapes[0]), Transpose(3, shapes[1])
    turned = b"".join([*transposed(mixed[:48], shapes[0]), mixed[48:768], *transposed(mixed[768:1024], shapes[1])])
    turned += mixed[1024:]
    half = (
        MappedExtent(0, 24, Source.INLINE, 16, half=True),
        MappedExtent(24, 488, Source.ZEROS),
        MappedExtent(512, 256, Source.BLOB, 256, 0, half=True),
        MappedExtent(768, 256, Source.BLOB, 512, 0),
    )
    halves = b"".join([*halved(_INLINE[16:64]), bytes(488), *halved(_BLOBS[0][256:768]), _BLOBS[0][512:768]])
    payloads = (
        Payload(Description("turned"), len(turned), digest_bytes(turned), extents, 1, None, transposes),
        Payload(described, len(mixed), digest_bytes(mixed), extents, parts_sha256=parts),
        Payload(Description("halves"), len(halves), digest_bytes(halves), half, 2),
        Payload(Description("future"), 77, digest_bytes(b""), (), features=4),
        Payload(Description("portable", executorch_version="1.5.1"), 777, digest_bytes(_BLOBS[1]), whole),
    )
    return write_v2(Manifest(payloads, blobs), _INLINE)


def _sound_v1() -> bytes:
    return pack_v1([("XnnpackBackend", b"first payload"), ("x" * 32, b""), ("portable", bytes(range(100)))])


def _of_package(content: bytes) -> str:
    """The verdict of the package's reader, as open_containers words it."""
    try:
        container = read_container(content, _NAMED)
    except FileFormatError as error:
        return f"refused: {error}"
    found = []
    for payload in container.payloads:
        if payload.unknown_features:
            verdict = "unknown"
        elif payload.size > _LARGE:
            verdict = "large"
        else:
            try:
                content = b"".join(container.chunks(payload))
            except FileFormatError as error:
                verdict = "missing" if "needs the blob" in str(error) else "damaged"
            else:
                verdict = "intact" if payload.sha256 in (None, digest_bytes(content)) else "damaged"
        found += [payload.name, verdict]
    return " ".join(["accepted", *found])


def _differences(containers: Sequence[bytes], found: Sequence[str]) -> Mapping[bytes, tuple[str, str]]:
    differing = {}
    for content, library in zip(containers, found, strict=True):
        package = _of_package(content)
        if package != library and not (package.startswith("refused") and library.startswith("refused")):
            differing[content] = (package, library)
    return differing


@pytest.fixture
def only_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the package's reader ignore methods and metadata, as the library does."""
    texts = _Reader._texts

    def texts_but_methods(self: _Reader, node: TableView, slot: IntEnum, most: int, longest: int) -> Iterator[str]:
        return iter(()) if slot == slots.Payload.METHODS else texts(self, node, slot, most, longest)

    monkeypatch.setattr(_Reader, "_texts", texts_but_methods)
    monkeypatch.setattr(_Reader, "_metadata", lambda *_: {})


@pytest.mark.usefixtures("only_what_runs")
@pytest.mark.parametrize("version", [1, 2])
def test_mutations(opened, version):
    """No sanitizer reports anything, and both readers come to the same verdict on every container."""
    sound = _sound_v1() if version == 1 else _sound_v2()
    table = 12 + 3 * 48 if version == 1 else len(sound) - len(_INLINE)
    chance = random.Random(version)  # noqa: S311 - the same containers each time
    containers = [sound, *(mutate(sound, chance, table) for _ in range(_COUNT))]
    found = [line.partition(" -> ")[0] for line in opened(containers, _NAMED)]
    assert found[0].startswith("accepted ")
    assert "damaged" not in found[0]
    assert _differences(containers, found) == {}
    verdicts = {line.split(" ", 1)[0] for line in found}
    assert verdicts == {"accepted", "refused:"}


@pytest.mark.parametrize("version", [1, 2])
def test_every_length(opened, version):
    """A container that is cut short anywhere, or continues after its end, is refused."""
    sound = _sound_v1() if version == 1 else _sound_v2()
    containers = [sound[:size] for size in range(len(sound))] + [sound + b"\x01"]
    assert all(line.startswith("refused: ") for line in opened(containers, _NAMED))


def test_corpus(opened):
    """The library agrees with the corpus, and loads no payload that once broke a runtime."""
    blobs = {path.name: path.read_bytes() for path in (_CORPUS / "blobs").iterdir()}
    verdicts = {"good": "accepted", "bad": "refused:", "mutated": "refused:", "unloadable": "accepted"}
    for kind, verdict in verdicts.items():
        paths = sorted((_CORPUS / kind).glob("*.nfat"))
        found = opened([path.read_bytes() for path in paths], blobs)
        assert {line.partition(" ")[0] for line in found} == {verdict}, kind
        assert len(found) == len(paths) > 0
        assert verdict == "refused:" or {" -> ", " damaged", " missing"}.isdisjoint(
            re.findall(r" -> | \w+", "".join(found))
        )


def test_digests(sanitized, tmp_path):
    """Digests of 0 to 300 bytes equal hashlib's, with portable code and with the processor's instructions."""
    content = random.Random(0).randbytes(300)  # noqa: S311  # the same bytes each time
    (tmp_path / "content").write_bytes(content)
    done = subprocess.run([sanitized / "hash_file", tmp_path / "content"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    digests = [hashlib.sha256(content[:size]).hexdigest() for size in range(len(content) + 1)]
    assert done.stdout.splitlines() == [f"{digest} {digest}" for digest in digests]
