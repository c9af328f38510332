"""Whatever the bytes are, the reader gives containers that keep the rules, or FileFormatError, and soon."""

from __future__ import annotations

import os
import random
import struct
import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.nfat import nfat_generated
from pteforge.artifacts.nfat.container import Container, read_container
from pteforge.artifacts.nfat.contents import Blob, Description, Extent, Manifest, Payload, Source
from pteforge.artifacts.nfat.limits import MAX_ZEROS
from pteforge.artifacts.nfat.manifest_writer import write_manifest
from pteforge.artifacts.nfat.parts import parts_digest
from pteforge.artifacts.nfat.v1 import pack_v1
from pteforge.artifacts.nfat.v2 import assemble, write_v2
from pteforge.errors import FileFormatError

_WEIGHTS = random.Random(1).randbytes(3000)  # noqa: S311 - the same bytes each time are what is wanted
_INLINE = bytes(range(1, 200))


def _manifest() -> Manifest:
    shapes = {
        "xnnpack": [(0, Source.INLINE, 0), (64, Source.ZEROS, 0), (100, Source.BLOB, 20), (700, Source.INLINE, 108)],
        "vulkan": [(0, Source.INLINE, 16), (80, Source.BLOB, 0)],
        "portable": [(0, Source.ZEROS, 0), (48, Source.BLOB, 1008), (1000, Source.INLINE, 8)],
    }
    blobs = (Blob(digest_bytes(_WEIGHTS), len(_WEIGHTS)),)
    payloads = []
    for name, extents in shapes.items():
        ends = [*(position for position, _, _ in extents[1:]), extents[-1][0] + 30]
        built = tuple(
            Extent(position, end - position, source, offset)
            for (position, source, offset), end in zip(extents, ends, strict=True)
        )
        backends = () if name == "portable" else (name.title() + "Backend",)
        description = Description(name, backends, ("forward", "encode"), "1.5.1", {"target": name})
        content = b"".join(_bytes_of(extent) for extent in built)
        parts = parts_digest(len(content), digest_bytes(content), built, _INLINE, blobs)
        payloads.append(Payload(description, len(content), digest_bytes(content), built, parts_sha256=parts))
    return Manifest(tuple(payloads), blobs, 128, {"key": "value"})


def _bytes_of(extent: Extent) -> bytes:
    if extent.source is Source.ZEROS:
        return bytes(extent.size)
    source = _INLINE if extent.source is Source.INLINE else _WEIGHTS
    return source[extent.offset : extent.offset + extent.size]


_V1 = pack_v1([("XnnpackBackend", b"x" * 100), ("VulkanBackend", b"v" * 50), ("portable", b"p" * 30)])
_V2 = write_v2(_manifest(), _INLINE)
_BLOBS = {digest_bytes(_WEIGHTS): _WEIGHTS}
_SAMPLES = {"v1": _V1, "v2": _V2}
_EXTREMES = (0, 1, 2, 3, 4, 8, 15, 16, 17, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1)


def _accepted(content: bytes) -> Container | None:
    """What is read, None where it is refused; what is accepted keeps the rules, and its payloads can be asked for."""
    try:
        container = read_container(content, _BLOBS)
    except FileFormatError:
        return None
    for payload in container.payloads:
        _check_payload(container, payload)
    return container


def _check_payload(container: Container, payload: Payload) -> None:
    end = 0
    for extent in payload.extents:
        assert extent.position == end
        assert extent.size > 0
        end += extent.size
        if extent.source is Source.INLINE:
            assert extent.offset + extent.size <= len(container.inline)
        elif extent.source is Source.BLOB:
            assert extent.offset + extent.size <= container.manifest.blobs[extent.blob].size
    assert end == payload.size or payload.features
    if payload.size < 1 << 20:
        try:
            assert sum(map(len, container.chunks(payload))) == payload.size
            container.verify(payload)
        except FileFormatError:
            pass


def _mutate(content: bytes, chance: random.Random) -> bytes:
    """One to four changes: of bits, bytes and whole numbers, cuts, repetitions and stretches from elsewhere."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(changed)) if changed else 0
        kind = chance.randrange(8)
        if not changed or kind == 0:
            changed[at:at] = chance.randbytes(chance.randrange(1, 20))
        elif kind == 1:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            changed[at] = chance.randrange(256)
        elif kind in (3, 4):
            word = chance.choice(_EXTREMES) if kind == 3 else chance.randrange(len(content) + 64)
            layout, width = chance.choice((("<H", 2), ("<I", 4), ("<Q", 8)))
            at = max(min(at - at % width, len(changed) - width), 0)
            changed[at : at + width] = struct.pack(layout, word & (256**width - 1))
        elif kind == 5:
            del changed[at : at + chance.randrange(1, 40)]
        elif kind == 6:
            size = chance.randrange(1, 64)
            other = chance.randrange(len(changed))
            changed[at : at + size] = changed[other : other + size]
        else:
            del changed[at:]
    return bytes(changed)


def _fuzz(name: str, count: int, seed: int) -> tuple[int, int]:
    """Numbers of accepted and refused mutations; half of those of version 2 get a start that is right again."""
    chance = random.Random(f"{name}-{seed}")  # noqa: S311 - the same containers each time are what is wanted
    accepted = 0
    for _ in range(count):
        content = _SAMPLES[name]
        if name == "v2" and chance.random() < 0.5:
            size = struct.unpack_from("<I", content, 8)[0]
            content = assemble(_mutate(content[16 : 16 + size], chance), _INLINE)
        else:
            content = _mutate(content, chance)
        accepted += _accepted(content) is not None
    return accepted, count - accepted


@pytest.mark.parametrize("name", _SAMPLES)
def test_samples_are_good(name):
    """What mutations start from is accepted, and its payloads are whole."""
    container = _accepted(_SAMPLES[name])
    for payload in container.payloads:
        container.verify(payload)


@pytest.mark.parametrize("name", _SAMPLES)
def test_mutations(name):
    """Thousands of changed containers are read or refused, nothing else; both happen."""
    accepted, refused = _fuzz(name, 10_000, 0)
    assert accepted > 100
    assert refused > 1000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", _SAMPLES)
def test_many_mutations(name, seed):
    """200,000 changed containers, 20,000 at a time."""
    accepted, refused = _fuzz(name, 20_000, seed)
    assert accepted > 300
    assert refused > 3000


@pytest.mark.parametrize("name", _SAMPLES)
def test_every_number_takes_extreme_values(name):
    """Each 32-bit number of a container, counts and offsets among them, in turn takes values that break things."""
    content = _SAMPLES[name]
    refused = 0
    for position in range(0, min(len(content) - 4, 1200), 4):
        for word in (0, 1, len(content), 2**31 - 1, 2**32 - 4, 2**32 - 1):
            refused += _accepted(content[:position] + struct.pack("<I", word) + content[position + 4 :]) is None
    assert refused > 100


@pytest.mark.parametrize("name", _SAMPLES)
def test_every_truncation_is_refused(name):
    """A container that lost its end anywhere is refused."""
    content = _SAMPLES[name]
    for size in range(len(content)):
        assert _accepted(content[:size]) is None, size


@st.composite
def _changed(draw):
    """A container of which stretches were cut, repeated, replaced and swapped, and numbers set."""
    content = draw(st.sampled_from([_V1, _V2]))
    for _ in range(draw(st.integers(1, 3))):
        position = st.integers(0, len(content))
        start, end = sorted((draw(position), draw(position)))
        numbers = st.builds(struct.pack, st.sampled_from(["<I", "<Q"]), st.integers(0, 2**32 - 1))
        patch = draw(st.one_of(st.binary(max_size=64), numbers, st.just(content[start:end] * 2)))
        content = content[:start] + patch + content[draw(st.sampled_from((start + len(patch), end))) :]
    return content


@settings(max_examples=300)
@given(_changed())
def test_mutations_found_by_search(content):
    """What Hypothesis makes of containers is read or refused, too."""
    _accepted(content)


@pytest.mark.slow
@pytest.mark.timeout(0)  # the number of examples is the caller's
@settings(
    max_examples=int(os.environ.get("NFAT_MUTATIONS", "10000")), deadline=10_000, suppress_health_check=[*HealthCheck]
)
@given(_changed())
def test_many_mutations_found_by_search(content):
    """As many of them as NFAT_MUTATIONS says, none of which takes long."""
    _accepted(content)


@settings(max_examples=300)
@given(st.binary(max_size=400), st.binary(max_size=64))
def test_arbitrary_bytes(content, inline):
    """Bytes that only begin like a container, or are a manifest only by name, are read or refused."""
    _accepted(content)
    _accepted(b"NFAT\1\0\0\0" + content)
    _accepted(b"NFAT\2\0\0\0" + content)
    _accepted(assemble(content[:4].ljust(4, b"\0") + b"NFM2" + content[4:], inline))


def test_many_parents_of_one_vector():
    """Payloads that point to one list of extents do not multiply the work."""
    builder = nfat_generated.flatbuffers.Builder(1 << 16)
    sha256 = builder.CreateByteVector(bytes(32))
    count = 200_000
    builder.StartVector(24, count, 8)
    for position in range(count - 1, -1, -1):
        nfat_generated.CreateExtent(builder, position, 0, 0, 0)
    extents = builder.EndVector()
    offsets = []
    for index in range(64):
        name = builder.CreateString(f"p{index}")
        nfat_generated.PayloadStart(builder)
        nfat_generated.PayloadAddName(builder, name)
        nfat_generated.PayloadAddSize(builder, count)
        nfat_generated.PayloadAddSha256(builder, sha256)
        nfat_generated.PayloadAddExtents(builder, extents)
        offsets.append(nfat_generated.PayloadEnd(builder))
    nfat_generated.ManifestStartPayloadsVector(builder, 64)
    for offset in offsets:
        builder.PrependUOffsetTRelative(offset)
    payloads = builder.EndVector()
    nfat_generated.ManifestStart(builder)
    nfat_generated.ManifestAddPayloads(builder, payloads)
    builder.Finish(nfat_generated.ManifestEnd(builder), file_identifier=b"NFM2")
    content = assemble(bytes(builder.Output()), b"")
    start = time.process_time()
    with pytest.raises(FileFormatError, match="more extents than the manifest has room for"):
        read_container(content)
    assert time.process_time() - start < 5


def test_vectors_that_claim_to_be_huge_take_no_memory():
    """Memory follows what is there, not what is claimed."""
    table = bytearray(write_manifest(_manifest()))
    tracemalloc.start()
    try:
        for position in range(0, len(table) - 4, 4):
            changed = bytearray(table)
            struct.pack_into("<I", changed, position, 2**32 - 1)
            _accepted(assemble(changed, _INLINE))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_payloads_of_missing_blobs_take_no_memory():
    """A payload that claims to be large is not built before its blobs are there."""
    claimed = Blob(digest_bytes(b"nowhere"), 2**40)
    payload = Payload(Description("portable"), 2**40, digest_bytes(b""), (Extent(0, 2**40, Source.BLOB),))
    container = read_container(write_v2(Manifest((payload,), (claimed,)), b""))
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match="is not in the file's named data"):
            container.rebuild(container.payloads[0])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_large_stretches_of_zeros_are_written_in_pieces():
    """Verifying a payload of many zeros takes little memory, and the limit keeps them from being without bounds."""
    size = MAX_ZEROS
    payload = Payload(Description("portable"), size, digest_bytes(bytes(size)), (Extent(0, size, Source.ZEROS),))
    container = read_container(write_v2(Manifest((payload,)), b""))
    tracemalloc.start()
    try:
        container.verify(container.payloads[0])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    huge = Payload(Description("portable"), size + 1, digest_bytes(b""), (Extent(0, size + 1, Source.ZEROS),))
    with pytest.raises(FileFormatError, match="bytes of zeros"):
        write_v2(Manifest((huge,)), b"")
