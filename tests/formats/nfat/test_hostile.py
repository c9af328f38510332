"""Whatever the bytes are, the reader soon returns a container that keeps the rules, or raises FileFormatError."""

import os
import random
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from flatbuffers import Builder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pteforge.artifacts.digest import digest_bytes
from pteforge.errors import FileFormatError
from pteforge.formats.nfat import manifest as manifest_module
from pteforge.formats.nfat import slots_generated as slots
from pteforge.formats.nfat.container import Container, assemble, read_container, write_v2
from pteforge.formats.nfat.contents import Blob, Description, Manifest, MappedExtent, Payload, Source
from pteforge.formats.nfat.golden import read_cases
from pteforge.formats.nfat.limits import MAX_ZEROS
from pteforge.formats.nfat.manifest import write_manifest
from pteforge.tests.mutations import mutate, spliced

_CORPUS = Path(__file__).with_name("corpus")
_SAMPLES = {name[:2]: (_CORPUS / "good" / f"{name}.nfat").read_bytes() for name in ("v1-two-payloads", "v2-self-check")}
_BLOBS = {path.name: path.read_bytes() for path in (_CORPUS / "blobs").iterdir()}
_MANIFEST = _SAMPLES["v2"][16:][: struct.unpack_from("<I", _SAMPLES["v2"], 8)[0]]
_INLINE = bytes(read_container(_SAMPLES["v2"]).inline)


def accepted(content: bytes) -> Container | None:
    """The container, checked against the rules; None if the reader refuses it."""
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
    assert end == payload.size or payload.unknown_features
    if payload.size < 1 << 20:
        try:
            if check := container.golden_check(payload):
                assert 1 <= len(read_cases(check.blob)) <= 64
            assert sum(map(len, container.chunks(payload))) == payload.size
            container.verify(payload)
        except FileFormatError:
            pass


@pytest.mark.parametrize("name", _SAMPLES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))])
def test_mutations(name, seed):
    """Thousands of changed containers, half of those of version 2 with a valid header, are read or refused."""
    chance = random.Random(f"{name}-{seed}")  # noqa: S311 - the same containers each time are what is wanted
    number = 0
    for _ in range(10_000):
        if name == "v2" and chance.random() < 0.5:
            content = assemble(mutate(_MANIFEST, chance), _INLINE)
        else:
            content = mutate(_SAMPLES[name], chance)
        number += accepted(content) is not None
    assert 100 < number < 9000


@pytest.mark.parametrize("name", _SAMPLES)
def test_every_number_takes_extreme_values(name, allocates_less_than):
    """Each 32-bit number of a container, counts and offsets among them, in turn takes values that break things."""
    content = _SAMPLES[name]
    refused = 0
    with allocates_less_than(4 << 20):
        for position in range(0, min(len(content) - 4, 1200), 4):
            for word in (0, 1, len(content), 2**31 - 1, 2**32 - 4, 2**32 - 1):
                refused += accepted(content[:position] + struct.pack("<I", word) + content[position + 4 :]) is None
    assert refused > 100


@pytest.mark.parametrize("name", _SAMPLES)
def test_every_truncation_is_refused(name):
    """A container that lost its end anywhere is refused."""
    content = _SAMPLES[name]
    for size in range(len(content)):
        assert accepted(content[:size]) is None, size


_MANY = int(os.environ.get("NFAT_MUTATIONS", "4000"))


@pytest.mark.parametrize(
    "examples", [300, pytest.param(_MANY, id="many", marks=[pytest.mark.nightly, pytest.mark.timeout(0)])]
)
def test_mutations_found_by_search(examples):
    """What Hypothesis makes of containers is read or refused, and none takes long: as many as NFAT_MUTATIONS says."""

    @settings(max_examples=examples, deadline=10_000, suppress_health_check=[*HealthCheck])
    @given(st.sampled_from([*_SAMPLES.values()]).flatmap(lambda content: spliced(content, len(content))))
    def check(content):
        accepted(content)

    check()


@settings(max_examples=300)
@given(st.binary(max_size=400), st.binary(max_size=64))
def test_arbitrary_bytes(content, inline):
    """Bytes that only begin like a container, or are a manifest only by name, are read or refused."""
    accepted(content)
    accepted(b"NFAT\1\0\0\0" + content)
    accepted(b"NFAT\2\0\0\0" + content)
    accepted(assemble(content[:4].ljust(4, b"\0") + b"NFM2" + content[4:], inline))


def test_many_parents_of_one_vector(monkeypatch):
    """Payloads that point to one list of extents do not multiply the work."""
    vectors = []

    class FirstVector(Builder):
        def PrependUOffsetTRelativeSlot(self, o, x, d):  # noqa: N802 - flatbuffers' name
            if o is slots.Payload.EXTENTS:
                vectors.append(x)
                x = vectors[0]
            super().PrependUOffsetTRelativeSlot(o, x, d)

    monkeypatch.setattr(manifest_module, "Builder", FirstVector)
    extents = tuple(MappedExtent(position, 1, Source.ZEROS) for position in range(200_000))
    first = Payload(Description("p0"), len(extents), digest_bytes(b""), extents)
    others = (replace(first, description=Description(f"p{index}"), extents=()) for index in range(1, 64))
    content = assemble(write_manifest(Manifest((first, *others))), b"")
    start = time.process_time()
    with pytest.raises(FileFormatError, match="more extents than fit"):
        read_container(content)
    assert time.process_time() - start < 5


@pytest.mark.parametrize("seed", range(2))
def test_golden_cases(seed, allocates_less_than):
    """Whatever a blob of golden cases holds, it is soon read or refused; some of each."""
    sound = next(blob for blob in _BLOBS.values() if len(blob) < 200)
    chance, number = random.Random(seed), 0  # noqa: S311 - the same blobs each time
    with allocates_less_than(1 << 20):
        for _ in range(5000):
            try:
                cases = read_cases(memoryview(mutate(sound, chance)))
            except FileFormatError:
                continue
            number += 1
            assert sum(len(tensor.content) for case in cases for tensor in (*case.inputs, *case.outputs)) < len(sound)
    assert 50 < number < 4000
    for size in range(len(sound)):
        with pytest.raises(FileFormatError):
            read_cases(memoryview(sound[:size]))


def test_huge_payload_of_a_missing_blob(allocates_less_than):
    """A payload that claims to be large is not built before its blobs are there."""
    claimed = Blob(digest_bytes(b"nowhere"), 2**40)
    payload = Payload(Description("portable"), 2**40, digest_bytes(b""), (MappedExtent(0, 2**40, Source.BLOB),))
    container = read_container(write_v2(Manifest((payload,), (claimed,)), b""))
    with allocates_less_than(1 << 20), pytest.raises(FileFormatError, match=r"not in .*named data"):
        b"".join(container.verified(container.payloads[0]))


def test_payload_of_zeros(allocates_less_than):
    """Verifying a payload of as many zeros as the format allows takes little memory; no more can be written."""

    def zeros(size: int) -> bytes:
        extents = (MappedExtent(0, size, Source.ZEROS),)
        return write_v2(Manifest((Payload(Description("portable"), size, digest_bytes(bytes(size)), extents),)), b"")

    container = read_container(zeros(MAX_ZEROS))
    with allocates_less_than(1 << 20):
        container.verify(container.payloads[0])
    with pytest.raises(FileFormatError, match="bytes of zeros"):
        zeros(MAX_ZEROS + 1)
