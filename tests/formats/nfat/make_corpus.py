"""Containers that readers in any language have to accept or refuse: see corpus/README.md.

Run it after adding a case: ``python tests/formats/nfat/make_corpus.py``.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pteforge.artifacts.digest import digest_bytes
from pteforge.formats.nfat.container import assemble, pack_v1, write_v2
from pteforge.formats.nfat.contents import (
    Blob,
    Description,
    Manifest,
    MappedExtent,
    MatrixShape,
    Payload,
    SelfCheck,
    Source,
    Transpose,
    parts_digest,
)
from pteforge.formats.nfat.golden import GoldenCase, GoldenTensor, write_cases
from pteforge.formats.nfat.limits import MAX_ZEROS
from pteforge.formats.nfat.manifest import write_manifest
from pteforge.formats.pte.schema_generated import ScalarType

CORPUS = Path(__file__).with_name("corpus")

WEIGHTS = bytes(range(256)) * 32
"""The first blob of all containers of version 2, which is in corpus/blobs/ under its key."""

_ONE = GoldenTensor(ScalarType.FLOAT, (2, 1), bytes(8))
CASES = write_cases([GoldenCase("forward", (_ONE,), (_ONE,)), GoldenCase("step", (), (_ONE, _ONE), stateful=True)])
"""Golden cases, the other blob, of payloads that check themselves."""

INLINE = b"inner program 1." + b"inner program 2!" + b"end"


class Case(NamedTuple):
    """A container, and what the error of a reader has to say; empty if readers accept it."""

    name: str
    content: bytes
    problem: str = ""


def _transposed(stored: bytes, shape: MatrixShape) -> bytes:
    """As the specification says: [batch][rows][columns] becomes [batch][columns][rows]."""
    item, rows, columns = shape.item, shape.rows, shape.columns
    items = [stored[start : start + item] for start in range(0, len(stored), item)]
    return b"".join(
        items[batch + row * columns + column]
        for batch in range(0, len(items), rows * columns)
        for column in range(columns)
        for row in range(rows)
    )


def _halved(stored: bytes) -> bytes:
    """As the specification says: the nearest binary16 of each binary32."""
    halves = b""
    for (number,) in struct.iter_unpack("<f", stored):
        try:
            halves += struct.pack("<e", number)
        except OverflowError:
            halves += struct.pack("<e", math.copysign(math.inf, number))
        if math.isnan(number):
            halves = halves[:-2] + struct.pack("<H", 0xFE00 if math.copysign(1, number) < 0 else 0x7E00)
    return halves


def _payload(
    name: str, extents: tuple[MappedExtent, ...], *backends: str, transposes: tuple[Transpose, ...] = ()
) -> Payload:
    parts = {Source.INLINE: INLINE, Source.BLOB: WEIGHTS}
    pieces = [
        bytes(each.size) if each.source is Source.ZEROS else bytes(each.stored.of(memoryview(parts[each.source])))
        for each in extents
    ]
    for index, extent in enumerate(extents):
        if extent.half:
            pieces[index] = _halved(pieces[index])
    for transpose in transposes:
        pieces[transpose.extent] = _transposed(pieces[transpose.extent], transpose.shape)
    content = b"".join(pieces)
    description = Description(name, backends, ("forward",), "1.5.1", {"target": name})
    sha256 = digest_bytes(content)
    features = int(bool(transposes)) | (2 if any(each.half for each in extents) else 0)
    parts_sha256 = parts_digest(len(content), sha256, extents, INLINE, BLOBS, transposes)
    return Payload(description, len(content), sha256, extents, features, parts_sha256, transposes)


BLOBS = (Blob(digest_bytes(WEIGHTS), len(WEIGHTS)),)

FIRST = _payload(
    "xnnpack",
    (
        MappedExtent(0, 16, Source.INLINE, 0),
        MappedExtent(16, 48, Source.ZEROS),
        MappedExtent(64, 4096, Source.BLOB, 1024, 0),
        MappedExtent(4160, 3, Source.INLINE, 32),
    ),
    "XnnpackBackend",
)
LAST = _payload("portable", (MappedExtent(0, 16, Source.INLINE, 16), MappedExtent(16, 8176, Source.BLOB, 0, 0)))
TRANSPOSED = _payload(
    "xnnpack",
    (
        MappedExtent(0, 16, Source.INLINE, 0),
        MappedExtent(16, 48, Source.ZEROS),
        MappedExtent(64, 4096, Source.BLOB, 1024, 0),
        MappedExtent(4160, 3072, Source.BLOB, 4096, 0),
        MappedExtent(7232, 2048, Source.BLOB, 0, 0),
        MappedExtent(9280, 1024, Source.BLOB, 2048, 0),
        MappedExtent(10304, 1024, Source.BLOB, 3072, 0),
        MappedExtent(11328, 3, Source.INLINE, 32),
    ),
    "XnnpackBackend",
    transposes=(
        Transpose(0, MatrixShape(1, 2, 8)),
        Transpose(2, MatrixShape(4, 8, 32)),
        Transpose(3, MatrixShape(16, 3, 64)),
        Transpose(4, MatrixShape(2, 512, 2)),
        Transpose(5, MatrixShape(8, 16, 8)),
    ),
)
HALVES = _payload(
    "vulkan",
    (
        MappedExtent(0, 8, Source.INLINE, 0, half=True),
        MappedExtent(8, 56, Source.ZEROS),
        MappedExtent(64, 2048, Source.BLOB, 1024, 0, half=True),
        MappedExtent(2112, 1024, Source.BLOB, 4096, 0),
        MappedExtent(3136, 1022, Source.BLOB, 6144, 0, half=True),
    ),
    "VulkanBackend",
    transposes=(Transpose(3, MatrixShape(4, 8, 32)),),
)
GOOD = Manifest((FIRST, LAST), BLOBS, 128, {"made-by": "hand"})


def _checked(tolerance: float = 1e-4, blob: int = 1, repeats: int = 3) -> Manifest:
    """A manifest with a payload that checks itself."""
    first = replace(TRANSPOSED, self_check=SelfCheck(blob, tolerance, repeats))
    return replace(GOOD, payloads=(first, LAST), blobs=(*BLOBS, Blob(digest_bytes(CASES), len(CASES))))


def _bad(name: str, problem: str, manifest: Manifest, inline: bytes = INLINE) -> Case:
    return Case(f"v2-{name}", assemble(write_manifest(manifest), inline), problem)


def _first(**changes: object) -> Manifest:
    """The good manifest with changes to its first payload."""
    return replace(GOOD, payloads=(replace(FIRST, **changes), LAST))  # type: ignore[arg-type]  # any of its fields


def _described(**changes: object) -> Manifest:
    return _first(description=replace(FIRST.description, **changes))  # type: ignore[arg-type]  # any of its fields


def _extent(index: int, **changes: object) -> Manifest:
    """The good manifest with changes to one extent of its first payload; sizes are not written, only positions."""
    extents = list(FIRST.extents)
    extents[index] = replace(extents[index], **changes)  # type: ignore[arg-type]  # any of its fields
    return _first(extents=tuple(extents))


def cases() -> Iterator[Case]:
    yield from _good()
    yield from _bad_v1()
    yield from _bad_starts()
    yield from _bad_descriptions()
    yield from _bad_extents()
    yield from _bad_transposes()
    yield from _bad_halves()
    yield from _bad_self_checks()


def _good() -> Iterator[Case]:
    good = write_v2(GOOD, INLINE)
    yield Case("v2-two-payloads", good)
    yield Case("v2-fallback-only", write_v2(replace(GOOD, payloads=(LAST,)), INLINE))
    yield Case("v2-no-fallback", write_v2(replace(GOOD, payloads=(FIRST,)), INLINE))
    zeros = _payload("zeros", (MappedExtent(0, 5, Source.ZEROS),))
    yield Case("v2-no-blobs-nothing-inline", write_v2(Manifest((zeros,)), b""))
    whole = tuple(replace(each, parts_sha256=None) for each in GOOD.payloads)
    yield Case("v2-no-parts-digest", write_v2(replace(GOOD, payloads=whole), INLINE))
    half = MAX_ZEROS // 2
    most = (MappedExtent(0, 8192, Source.BLOB), *_zeros(8192, half), *_zeros(8192 + half, half))
    yield Case("v2-most-zeros", write_v2(replace(GOOD, payloads=(_payload("portable", most),)), b""))
    yield Case("v2-four-times", write_v2(replace(GOOD, payloads=(_payload("portable", _repeated(4)),)), b""))
    # A payload with an unknown extension: readers ignore its extents, and cannot use it.
    yield _bad("feature", "", _first(features=1 << 63, extents=(MappedExtent(9, 1, Source.ZEROS, 5, 7),)))
    yield Case("v2-transposed", write_v2(replace(GOOD, payloads=(TRANSPOSED, LAST)), INLINE))
    whole = replace(TRANSPOSED, parts_sha256=None)
    yield Case("v2-transposed-no-parts-digest", write_v2(replace(GOOD, payloads=(whole, LAST)), INLINE))
    new = _manifest_of(features=5, transposes=(Transpose(99, MatrixShape(3, 0, 0)),))
    yield _bad("transposed-and-a-feature", "", new)
    yield Case("v2-halves", write_v2(replace(GOOD, payloads=(HALVES, LAST)), INLINE))
    whole = replace(HALVES, parts_sha256=None)
    yield Case("v2-halves-no-parts-digest", write_v2(replace(GOOD, payloads=(whole, LAST)), INLINE))
    yield Case("v2-self-check", write_v2(_checked(), INLINE))
    yield Case("v2-self-check-once-and-exact", write_v2(_checked(5e-324, repeats=1), INLINE))
    first, last = _checked(0, 9, 0).payloads
    yield _bad("self-check-and-a-feature", "", replace(GOOD, payloads=(replace(first, features=4), last)))
    yield Case("v1-two-payloads", pack_v1([("XnnpackBackend", b"first"), ("portable", b"second")]))
    yield Case("v1-empty", pack_v1([]))
    yield Case("v1-id-of-32", pack_v1([("B" * 32, b"x")]))
    yield Case("v1-payload-of-0-bytes", pack_v1([("portable", b"")]))
    yield Case("v1-padded", _v1([(b"A", 4, 3), (b"portable", 16, 2)], bytes(4) + b"aaa" + bytes(9) + b"bb" + bytes(4)))


def _zeros(position: int, size: int) -> tuple[MappedExtent, ...]:
    return (MappedExtent(position, size, Source.ZEROS),)


def _repeated(times: int) -> tuple[MappedExtent, ...]:
    return tuple(MappedExtent(index * len(WEIGHTS), len(WEIGHTS), Source.BLOB) for index in range(times))


def _v1(entries: list[tuple[bytes, int, int]], section: bytes) -> bytes:
    table = b"".join(struct.pack("<32sQQ", *entry) for entry in entries)
    return struct.pack("<4sII", b"NFAT", 1, len(entries)) + table + section


def _bad_v1() -> Iterator[Case]:
    yield Case("v1-overlap", _v1([(b"A", 0, 4), (b"B", 3, 3)], b"aaabbb"), "overlaps")
    yield Case("v1-behind-the-end", _v1([(b"A", 0, 7)], b"aaabbb"), "cut short")
    yield Case("v1-offset-wraps", _v1([(b"A", 2**64 - 1, 2)], b"aaabbb"), "cut short")
    yield Case("v1-size-wraps", _v1([(b"A", 1, 2**64 - 1)], b"\0aabbb"), "cut short")
    yield Case("v1-hole", _v1([(b"A", 0, 3), (b"B", 4, 3)], b"aaa?bbb"), "no payload")
    yield Case("v1-something-behind", _v1([(b"A", 0, 3)], b"aaa?"), "no payload")
    yield Case("v1-large-gap", _v1([(b"A", 4096, 1)], bytes(4096) + b"a"), "no payload")
    yield Case("v1-id-empty", _v1([(b"", 0, 1)], b"a"), "not a backend id")
    yield Case("v1-id-behind-nul", _v1([(b"A\0B", 0, 1)], b"a"), "not a backend id")
    yield Case("v1-id-not-ascii", _v1([(b"A\xff", 0, 1)], b"a"), "not a backend id")
    yield Case("v1-count", struct.pack("<4sII", b"NFAT", 1, 2**32 - 1), "4294967295 payloads")
    yield Case("v1-65-entries", _v1([(b"A", 0, 0)] * 65, b""), "65 payloads")
    yield Case("v1-table-cut", _v1([(b"A", 0, 0)], b"")[:-1], "cut short")


def _bad_starts() -> Iterator[Case]:
    good = write_v2(GOOD, INLINE)
    yield Case("empty", b"", "not an NFAT")
    yield Case("version-0", b"NFAT" + bytes(28), "version 0")
    yield Case("version-3", b"NFAT\3\0\0\0" + good[8:], "version 3")
    yield Case("other-magic", b"NFAX" + good[4:], "not an NFAT")
    yield Case("v2-start-cut", good[:15], "cut short")
    yield Case("v2-end-cut", good[:-1], "says")
    yield Case("v2-something-behind", good + b"\0", "says")
    size = struct.unpack_from("<I", good, 8)[0]
    yield Case("v2-manifest-size-huge", good[:8] + b"\xff" * 4 + good[12:], "says")
    yield Case("v2-manifest-of-0", struct.pack("<4sIII", b"NFAT", 2, 0, 0), "a manifest of 0 bytes")
    large = (1 << 24) + 16
    yield Case("v2-inline-size-huge", struct.pack("<4sIII", b"NFAT", 2, size, 2**32 - 1) + good[16:], "says")
    yield Case("v2-manifest-too-large", struct.pack("<4sIII", b"NFAT", 2, large, 0) + good[16:], "says")
    padded = assemble(write_manifest(GOOD) + b"\0", INLINE)  # a byte too many in the manifest leaves 15 for padding
    end = 16 + struct.unpack_from("<I", padded, 8)[0]
    dirty = -end % 16
    yield Case("v2-padding-not-zero", padded[:end] + b"\1" * dirty + padded[end + dirty :], "not zero")
    yield Case("v2-identifier", good[:20] + b"NFM3" + good[24:], "identifier")
    yield Case("v2-root-outside", good[:16] + struct.pack("<I", 2**32 - 1) + good[20:], "damaged manifest")
    yield Case("v2-root-in-itself", good[:16] + bytes(4) + good[20:], "damaged manifest")
    yield Case("v2-all-ones", assemble(b"\xff" * 4 + b"NFM2" + b"\xff" * 56, b""), "damaged manifest")
    yield Case("v2-all-zeros", assemble(bytes(4) + b"NFM2" + bytes(56), b""), "damaged manifest")


def _bad_descriptions() -> Iterator[Case]:
    yield _bad("no-payloads", "0 payloads", replace(GOOD, payloads=()))
    many = tuple(replace(LAST, description=Description(f"p{index}")) for index in range(65))
    yield _bad("65-payloads", "65 payloads", replace(GOOD, payloads=many))
    yield _bad("name-twice", "two payloads", replace(GOOD, payloads=(LAST, LAST)))
    yield _bad("name-empty", "name", _described(name=""))
    yield _bad("name-long", "name", _described(name="n" * 65))
    yield _bad("name-not-ascii", "name", _described(name="naïve"))
    yield _bad("name-blank", "name", _described(name="two words"))
    yield _bad("backend-empty", "backend", _described(backends=("",)))
    yield _bad("backend-long", "256 bytes", _described(backends=("B" * 256,)))
    yield _bad("65-backends", "65 backends", _described(backends=("B",) * 65))
    yield _bad("backends-unsorted", "not sorted", _described(backends=("XnnpackBackend", "VulkanBackend")))
    yield _bad("backend-twice", "repeated", _described(backends=("XnnpackBackend", "XnnpackBackend")))
    yield _bad("backend-longer-first", "not sorted", _described(backends=("XnnpackBackend", "Xnnpack")))
    yield _bad("version-control", "version", _described(executorch_version="1.5\n"))
    yield _bad("sha256-short", "SHA-256 of 31", _first(sha256="00" * 31))
    yield _bad("sha256-missing", "SHA-256 of 0", _first(sha256=None))
    yield _bad("parts-sha256-short", "SHA-256 of 31", _first(parts_sha256="00" * 31))
    yield _bad("alignment-8", "alignment", replace(GOOD, alignment=8))
    yield _bad("alignment-24", "alignment", replace(GOOD, alignment=24))
    yield _bad("alignment-large", "alignment", replace(GOOD, alignment=1 << 17))
    blob = GOOD.blobs[0]
    yield _bad("blob-of-0", "blob 1 has 0", replace(GOOD, blobs=(blob, replace(blob, size=0))))
    yield _bad("blob-huge", "blob 1 has", replace(GOOD, blobs=(blob, replace(blob, size=2**48 + 1))))


def _last(extents: tuple[MappedExtent, ...]) -> Manifest:
    """A manifest with one payload of these extents."""
    size = extents[-1].position + extents[-1].size
    return replace(GOOD, payloads=(replace(LAST, size=size, extents=extents),))


def _bad_extents() -> Iterator[Case]:
    yield _bad("no-extents", "no extents", _first(extents=()))
    yield _bad("size-0", "has 0 bytes", _first(size=0, extents=FIRST.extents[:1]))
    yield _bad("size-in-last-extent", "come before", _first(size=4160))
    yield _bad("size-beyond-stored", "its source has", _first(size=2**40))
    yield _bad("zeros-beyond-limit", "bytes of zeros", _last(_zeros(0, MAX_ZEROS + 1)))
    parts = (*_zeros(0, MAX_ZEROS), MappedExtent(MAX_ZEROS, 16, Source.INLINE), *_zeros(MAX_ZEROS + 16, 1))
    yield _bad("zeros-beyond-limit-in-parts", "bytes of zeros", _last(parts))
    yield _bad("zeros-huge", "bytes of zeros", _last(_zeros(0, 2**48)))
    five = _last(_repeated(5))
    yield _bad("five-times", "are possible", five, b"")
    unused = Blob(digest_bytes(b""), 2**40)
    yield _bad("five-times-with-unused-blob", "are possible", replace(five, blobs=(*GOOD.blobs, unused)), b"")
    inline = tuple(MappedExtent(16 * index, 16, Source.INLINE) for index in range(10))
    yield _bad("inline-ten-times", "are possible", _last(inline))
    yield _bad("size-huge", "are possible", _first(size=2**64 - 1))
    yield _bad("starts-at-16", "where 0 comes next", _extent(0, position=16))
    yield _bad("position-repeats", "come before", _extent(1, position=64))
    yield _bad("position-descends", "come before", _extent(1, position=80))
    yield _bad("position-huge", "come before", _extent(3, position=2**64 - 16))
    yield _bad("zeros-with-offset", "names the offset", _extent(1, offset=16))
    yield _bad("zeros-with-blob", "names blob", _extent(1, blob=1))
    yield _bad("inline-with-blob", "names blob", _extent(0, blob=1))
    yield _bad("inline-outside", "its source has", _extent(0, offset=32))
    yield _bad("inline-offset-wraps", "its source has", _extent(0, offset=2**64 - 16))
    yield _bad("blob-outside", "its source has", _extent(2, offset=4112))
    yield _bad("blob-offset-wraps", "its source has", _extent(2, offset=2**64 - 16))
    yield _bad("blob-unknown", "there are 1", _extent(2, blob=1))
    yield _bad("blob-unknown-huge", "there are 1", _extent(2, blob=2**32 - 1))
    yield _bad("source-unknown", "source 3", _extent(1, source=3))
    yield _bad("misaligned", "not aligned", _extent(2, offset=1032))


def _manifest_of(**changes: object) -> Manifest:
    """The manifest of the transposed payload with changes to it."""
    return replace(GOOD, payloads=(replace(TRANSPOSED, **changes), LAST))  # type: ignore[arg-type]  # any of its fields


def _transpose(extent: int, item: int, rows: int, columns: int) -> Manifest:
    return _manifest_of(transposes=(Transpose(extent, MatrixShape(item, rows, columns)),))


def _bad_transposes() -> Iterator[Case]:
    yield _bad("transposes-without-feature", "has 5 transposes", _manifest_of(features=0))
    yield _bad("feature-without-transposes", "has 0 transposes", _manifest_of(transposes=()))
    twice = (TRANSPOSED.transposes[0],) * 2
    yield _bad("transpose-twice", "transpose of extent 0 after that of extent 0", _manifest_of(transposes=twice))
    turned = TRANSPOSED.transposes[::-1]
    yield _bad("transposes-descend", "transpose of extent 4 after that of extent 5", _manifest_of(transposes=turned))
    yield _bad("transpose-of-no-extent", "there are 8", _transpose(8, 4, 8, 32))
    yield _bad("transpose-of-no-extent-huge", "there are 8", _transpose(2**32 - 1, 4, 8, 32))
    many = tuple(Transpose(index, MatrixShape(4, 8, 32)) for index in range(9))
    yield _bad("more-transposes-than-extents", "9 transposes; 8", _manifest_of(transposes=many))
    yield _bad("transpose-of-zeros", "is of zeros", _transpose(1, 4, 2, 2))
    for item in (0, 3, 32, 2**31):
        yield _bad(f"transpose-item-{item}", "has items of", _transpose(2, item, 8, 32))
    yield _bad("transpose-rows-0", "has 0 rows", _transpose(2, 4, 0, 32))
    yield _bad("transpose-rows-1", "has 1 rows", _transpose(2, 4, 1, 32))
    yield _bad("transpose-columns-0", "and 0 columns", _transpose(2, 4, 8, 0))
    yield _bad("transpose-columns-1", "and 1 columns", _transpose(2, 4, 8, 1))
    yield _bad("transpose-too-large", "are no multiple", _transpose(2, 4, 32, 64))
    yield _bad("transpose-remainder", "are no multiple", _transpose(2, 4, 3, 8))
    yield _bad("transpose-of-half-items", "are no multiple", _transpose(7, 2, 2, 2))
    yield _bad("transpose-product-wraps", "are no multiple", _transpose(2, 16, 2**31, 2**31))


def _halves(index: int, **changes: object) -> Manifest:
    """The manifest of the payload with half extents, with changes to one extent."""
    extents = list(HALVES.extents)
    extents[index] = replace(extents[index], **changes)  # type: ignore[arg-type]  # any of its fields
    return replace(GOOD, payloads=(replace(HALVES, extents=tuple(extents)), LAST))


def _with_halves(*halves: int) -> bytes:
    """The container with another list of half extents: a vector of as many numbers as the sound one has."""
    written, sound = write_manifest(replace(GOOD, payloads=(HALVES, LAST))), struct.pack("<IIII", 3, 0, 2, 4)
    assert written.count(sound) == 1
    return assemble(written.replace(sound, struct.pack("<IIII", 3, *halves)), INLINE)


def _bad_halves() -> Iterator[Case]:
    without = replace(GOOD, payloads=(replace(HALVES, features=1), LAST))
    yield _bad("halves-without-feature", "has 3 half extents", without)
    none = tuple(replace(extent, half=False) for extent in HALVES.extents)
    yield _bad(
        "feature-without-halves", "has 0 half extents", replace(GOOD, payloads=(replace(HALVES, extents=none), LAST))
    )
    yield Case("v2-half-twice", _with_halves(0, 2, 2), "half extent 2 after 2")
    yield Case("v2-halves-descend", _with_halves(2, 0, 4), "half extent 0 after 2")
    yield Case("v2-half-of-no-extent", _with_halves(0, 2, 5), "there are 5 extents")
    yield Case("v2-half-of-no-extent-huge", _with_halves(0, 2, 2**32 - 1), "there are 5 extents")
    yield _bad("half-of-zeros", "is zeros", _halves(1, half=True))
    yield _bad("half-of-transposed", "is transposed", _halves(3, half=True))
    yield _bad("half-of-odd-size", "is of an odd size", _halves(1, position=7))
    yield _bad("half-outside", "its source has", _halves(2, offset=4160))
    yield _bad("half-outside-inline", "its source has", _halves(0, offset=32))


def _bad_self_checks() -> Iterator[Case]:
    for name, tolerance in (("0", 0.0), ("below-0", -1e-4), ("large", 1.0001), ("nan", math.nan)):
        yield _bad(f"self-check-tolerance-{name}", "with a tolerance of", _checked(tolerance))
    yield _bad("self-check-no-repeats", "0 times", _checked(repeats=0))
    yield _bad("self-check-many-repeats", "101 times", _checked(repeats=101))
    yield _bad("self-check-of-no-blob", "blob 2; there are 2", _checked(blob=2))
    yield _bad("self-check-of-no-blob-huge", "blob 4294967295; there are 2", _checked(blob=2**32 - 1))
    small, large = (replace(_checked(), blobs=(*BLOBS, Blob(digest_bytes(b""), size))) for size in (3, 2**24 + 1))
    yield _bad("self-check-of-3-bytes", "3 bytes of golden cases", small)
    yield _bad("self-check-of-too-many-bytes", "16777217 bytes of golden cases", large)


def write_corpus() -> None:
    for case in cases():
        folder = CORPUS / ("bad" if case.problem else "good")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{case.name}.nfat").write_bytes(case.content)
    blobs = CORPUS / "blobs"
    blobs.mkdir(exist_ok=True)
    for content in (WEIGHTS, CASES):
        (blobs / digest_bytes(content)).write_bytes(content)


if __name__ == "__main__":
    write_corpus()
