"""Real payloads in one container: rebuilt byte for byte, stored once, described, verified."""

import hashlib
import struct
from dataclasses import replace

import pytest
from pteforge.artifacts.digest import Digest, digest_bytes
from pteforge.errors import FileFormatError, InputError
from pteforge.formats.nfat.container import read_container, write_v2
from pteforge.formats.nfat.contents import Description, Source
from pteforge.formats.nfat.pack import PackedContainer, pack_v2
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.mutations import damage_inline


def test_payloads_come_back(payloads, packed, tmp_path):
    """Payloads keep priority, description and digest, and are rebuilt as bytes and as files."""
    container = packed.open()
    assert container.version == 2
    assert [payload.description for payload in container.payloads] == [description for description, _ in payloads]
    assert container.manifest.metadata == {"made-by": "pteforge"}
    for payload, (_, content) in zip(container.payloads, payloads, strict=True):
        assert payload.sha256 == digest_bytes(content)
        assert payload.parts_sha256 == _specified(container, payload)
        assert b"".join(container.verified(payload)) == content
        container.verify(payload)
        destination = tmp_path / "out" / f"{payload.name}.pte"
        container.write(payload, destination)
        assert destination.read_bytes() == content
        assert [path.name for path in destination.parent.iterdir() if path.suffix == ".part"] == []
    assert container.payload("portable") is container.payloads[-1]
    with pytest.raises(FileFormatError, match=r"payload vulkan; .*xnnpack, portable"):
        container.payload("vulkan")


def test_weights_are_stored_once(payloads, packed):
    """The payloads share all weights, the convolution's in the layout of the fallback; no weights are inline."""
    assert packed.size <= max(len(content) for _, content in payloads) + 16384
    xnnpack, portable = packed.open().payloads
    conv = 16 * 8 * 9 * 4
    assert (xnnpack.features, xnnpack.transposed_bytes) == (1, conv)
    assert (portable.features, portable.transposes) == (0, ())
    twice = pack_v2(payloads, share_transposed=False)
    assert packed.size + conv - 512 < twice.size < packed.size + conv + 512
    assert len(packed.container) < 20000
    assert all(len(blob) >= 4096 - 16 for blob in packed.blobs.values())


def test_extents(payloads, packed):
    """A segment, which ExecuTorch loads at once, is one range of one blob or inline, and needs no copy."""
    container = packed.open()
    assert packed.alignment == container.manifest.alignment == 128
    for payload, (_, content) in zip(container.payloads, payloads, strict=True):
        pte = read_pte(content)
        starts = [extent.position for extent in payload.extents]
        for segment in (each for each in pte.segments if each.size):
            assert not any(segment.offset < start < segment.offset + segment.size for start in starts)
        assert not any(0 < start < pte.program_size for start in starts)
        stored = [extent for extent in payload.extents if extent.source is not Source.ZEROS]
        assert all((extent.position - extent.offset) % 16 == 0 for extent in stored)


def test_only_what_is_freed_is_transposed(payloads):
    """Payloads keep their layouts if a backend may keep constants, and if there is nothing to transpose."""
    (description, content), portable = payloads
    assert description.backends == ("XnnpackBackend",)
    other = replace(description, backends=("CoreMLBackend", "XnnpackBackend"))
    for entries in ([(other, content), portable], [portable, (description, content)], [(description, content)]):
        with_all = pack_v2(entries, fallback=False)
        assert with_all == pack_v2(entries, fallback=False, share_transposed=False)
        assert not any(payload.features for payload in with_all.open().payloads)


def test_packing_is_deterministic(payloads, packed):
    """The same payloads make the same bytes, from mapped files or from memory."""
    again = pack_v2(
        [(description, memoryview(content)) for description, content in payloads], metadata={"made-by": "pteforge"}
    )
    assert again == packed


def test_the_last_payload_has_to_be_a_fallback(payloads):
    """A file without a fallback is only made on request."""
    with pytest.raises(InputError, match="needs no backend"):
        pack_v2(payloads[::-1])
    with pytest.raises(InputError, match="needs no backend"):
        pack_v2([])
    packed = pack_v2(payloads[:1], fallback=False)
    assert b"".join(packed.open().verified(packed.open().payloads[0])) == payloads[0][1]
    with pytest.raises(FileFormatError, match="0 payloads"):
        pack_v2([], fallback=False)


def test_payloads_that_are_refused(payloads):
    """A payload that is not a `.pte`, or says that it needs the delegate of fat files, is refused by name."""
    with pytest.raises(FileFormatError, match=r"payload broken: not a \.pte"):
        pack_v2([(Description("broken", ("X",)), b"not a program"), payloads[-1]])
    with pytest.raises(InputError, match="payload nested is a fat file"):
        pack_v2([(Description("nested", ("NfatBackend",)), payloads[0][1]), payloads[-1]])


@pytest.mark.parametrize(
    ("description", "problem"),
    [
        (Description("two words"), "name"),
        (Description("portable"), "two payloads"),
        (Description("x", backends=("B" * 256,)), "a backend of payload x"),
        (Description("x", methods=("",)), "a method of payload x"),
        (Description("x", methods=("nul\0",)), "NUL"),
        (Description("x", methods=("m" * 1025,)), "1025 bytes"),
        (Description("x", methods=("m",) * 1025), "1025 methods"),
        (Description("x", metadata={"": "empty"}), "metadata key of payload x"),
        (Description("x", metadata={"key": "v" * 65536}), "65536 bytes"),
        (Description("x", metadata={"key": "\ud800"}), "is not text"),
    ],
)
def test_descriptions_have_limits(payloads, description, problem):
    """Descriptions that readers would refuse are refused when packed, naming payload and field."""
    with pytest.raises(FileFormatError, match=problem):
        pack_v2([(description, payloads[0][1]), payloads[-1]])


def test_backends_are_a_set(payloads):
    """Order and repetition of backends do not change the container."""
    (description, content), portable = payloads
    packed = [
        pack_v2([(replace(description, backends=backends), content), portable]).container
        for backends in (("B", "A"), ("A", "B", "A"))
    ]
    assert packed[0] == packed[1]
    assert read_container(packed[0]).payloads[0].description.backends == ("A", "B")


@pytest.fixture(scope="module")
def apart(payloads) -> PackedContainer:
    """Each payload has the convolution's weight for itself."""
    return pack_v2(payloads, share_transposed=False)


def test_wrong_blob(apart):
    """A blob of the wrong size makes only those payloads unusable that need it, and is named."""
    container = apart.open()
    xnnpack, portable = container.payloads
    only_xnnpack = {container.manifest.blobs[index].digest for index in set(xnnpack.blobs) - set(portable.blobs)}
    digest = only_xnnpack.pop()
    short = read_container(apart.container, {**apart.blobs, digest: apart.blobs[digest][:-1]})
    assert b"".join(short.verified(portable))
    with pytest.raises(FileFormatError, match=f"xnnpack needs the blob {digest} of"):
        short.verify(xnnpack)


def test_damage_is_found_and_named(packed, tmp_path):
    """Every use of a payload with a damaged blob is an error that names it, and writes no file."""
    container = packed.open()
    portable = container.payloads[-1]
    digest = container.manifest.blobs[portable.blobs[0]].digest
    changed = bytearray(packed.blobs[digest])
    changed[len(changed) // 2] ^= 1
    damaged = read_container(packed.container, {**packed.blobs, digest: changed})
    destination = tmp_path / "portable.pte"
    for use in (damaged.verify, lambda payload: damaged.write(payload, destination)):
        with pytest.raises(FileFormatError, match=f"portable is damaged: .*{digest} has other bytes"):
            use(portable)
    assert list(tmp_path.iterdir()) == []


def test_damage_of_the_inline_section_is_found(packed):
    """The payload whose inline bytes changed is refused, the other one is not."""
    damaged = damage_inline(packed, "xnnpack").open()
    damaged.verify(damaged.payload("portable"))
    with pytest.raises(FileFormatError, match="do not have SHA-256"):
        damaged.verify(damaged.payload("xnnpack"))


def _specified(container, payload) -> str:
    """The digest of a payload's parts, computed as the specification says."""
    described = struct.pack("<Q", payload.size) + bytes.fromhex(payload.sha256)
    for extent in payload.extents:
        described += struct.pack("<QQII", extent.position, extent.offset, extent.source, extent.blob)
    for transpose in payload.transposes:
        shape = transpose.shape
        described += struct.pack("<IIII", transpose.extent, shape.item, shape.rows, shape.columns)
    for index, extent in enumerate(payload.extents):
        if extent.half:
            described += struct.pack("<I", index)
    for extent in payload.extents:
        if extent.source is Source.INLINE:
            size = 2 * extent.size if extent.half else extent.size
            described += bytes(container.inline[extent.offset : extent.offset + size])
        if extent.source is Source.BLOB:
            described += bytes.fromhex(container.manifest.blobs[extent.blob].digest)
    return hashlib.sha256(described).hexdigest()


def test_damaged_descriptions_are_found(apart):
    """A wrong digest of parts makes its payload unusable, and no other one."""
    container = apart.open()
    first, last = container.payloads
    wrong = replace(first, parts_sha256=Digest("ab" * 32))
    damaged = read_container(
        write_v2(replace(container.manifest, payloads=(wrong, last)), bytes(container.inline)), apart.blobs
    )
    damaged.verify(damaged.payload(last.name))
    with pytest.raises(FileFormatError, match=r"parts .*SHA-256 abab"):
        damaged.verify(damaged.payload(first.name))
    assert len(container.manifest.blobs) > 1
    turned = replace(container, manifest=replace(container.manifest, blobs=container.manifest.blobs[::-1]))
    with pytest.raises(FileFormatError, match="its parts do not have"):
        next(turned.chunks(first))
