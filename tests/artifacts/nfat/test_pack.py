"""Real payloads in one container: rebuilt byte for byte, stored once, described."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from pteforge.artifacts.digest import digest_bytes
from pteforge.artifacts.nfat.container import read_container
from pteforge.artifacts.nfat.contents import Description, Source
from pteforge.artifacts.nfat.pack import pack_v2
from pteforge.artifacts.pte.reader import read_pte
from pteforge.errors import FileFormatError, InputError


def test_payloads_come_back(payloads, packed, tmp_path):
    """Each payload is there by priority, with what it says and its digest, and is rebuilt as bytes and as a file."""
    container = packed.open()
    assert container.version == 2
    assert [payload.description for payload in container.payloads] == [description for description, _ in payloads]
    assert container.manifest.metadata == {"made-by": "pteforge"}
    for payload, (_, content) in zip(container.payloads, payloads, strict=True):
        assert payload.sha256 == digest_bytes(content)
        assert container.rebuild(payload) == content
        container.verify(payload)
        destination = tmp_path / "out" / f"{payload.name}.pte"
        container.write(payload, destination)
        assert destination.read_bytes() == content
        assert [path.name for path in destination.parent.iterdir() if path.suffix == ".part"] == []
    assert container.payload("portable") is container.payloads[-1]
    with pytest.raises(FileFormatError, match=r"no payload vulkan; there are: xnnpack, portable"):
        container.payload("vulkan")


def test_weights_are_stored_once(payloads, packed):
    """Linear weights are shared; only the convolution's, which XNNPACK has in another layout, are there twice."""
    conv = 16 * 8 * 9 * 4
    assert packed.size <= max(len(content) for _, content in payloads) + conv + 16384


def test_the_fallback_s_segment_stays_in_one_piece(payloads, packed):
    """What ExecuTorch loads at once is one range of one blob or inline, so that nothing is copied together."""
    for payload, (_, content) in zip(packed.open().payloads, payloads, strict=True):
        pte = read_pte(content)
        starts = [each.position for each in payload.extents]
        for segment in (each for each in pte.segments if each.size):
            assert not any(segment.offset < start < segment.offset + segment.size for start in starts)
        assert not any(0 < start < pte.program_size for start in starts)


def test_extents_keep_alignment(packed):
    """What is at a multiple of 16 in a payload is so in its source, and blobs start at multiples of 128."""
    assert packed.alignment == packed.open().manifest.alignment == 128
    for payload in packed.open().payloads:
        assert all(
            (each.position - each.offset) % 16 == 0 for each in payload.extents if each.source is not Source.ZEROS
        )


def test_packing_is_deterministic(payloads, packed):
    """The same payloads give the same bytes, from mapped files or from memory."""
    again = pack_v2(
        [(description, memoryview(content)) for description, content in payloads], metadata={"made-by": "pteforge"}
    )
    assert again == packed


def test_thin_is_the_same_as_packing_less(payloads, packed):
    """A container of some of the payloads, taken from a fat one, is the one that packing just those gives."""
    container = packed.open()
    kept = container.payload("portable")
    thin = pack_v2([(kept.description, container.rebuild(kept))])
    assert thin == pack_v2([payloads[-1]])
    assert thin.size < packed.size


def test_small_things_are_inline_and_weights_are_not(packed):
    """The container, which is loaded whatever payload is chosen, holds no weights."""
    assert len(packed.container) < 20000
    assert all(len(blob) >= 4096 - 16 for blob in packed.blobs.values())


def test_the_last_payload_has_to_be_a_fallback(payloads):
    """Files without one cannot be published by accident; who takes payloads out on purpose says so."""
    with pytest.raises(InputError, match="needs no backend"):
        pack_v2(payloads[::-1])
    with pytest.raises(InputError, match="needs no backend"):
        pack_v2([])
    packed = pack_v2(payloads[:1], fallback=False)
    assert packed.open().rebuild(packed.open().payloads[0]) == payloads[0][1]
    with pytest.raises(FileFormatError, match="0 payloads"):
        pack_v2([], fallback=False)


def test_what_is_no_pte_is_refused(payloads):
    """The message names the payload."""
    with pytest.raises(FileFormatError, match=r"payload broken: not a \.pte"):
        pack_v2([(Description("broken", ("X",)), b"not a program"), payloads[-1]])


@pytest.mark.parametrize(
    ("description", "problem"),
    [
        (Description(""), "name"),
        (Description("n" * 65), "name"),
        (Description("two words"), "name"),
        (Description("portable"), "two payloads"),
        (Description("x", backends=("",)), "a backend of payload x"),
        (Description("x", backends=("B" * 256,)), "a backend of payload x"),
        (Description("x", backends=tuple(f"B{index}" for index in range(65))), "65 backends"),
        (Description("x", methods=("",)), "a method of payload x"),
        (Description("x", methods=("nul\0",)), "NUL"),
        (Description("x", methods=("m" * 1025,)), "1025 bytes"),
        (Description("x", methods=("m",) * 1025), "1025 methods"),
        (Description("x", executorch_version="1 5"), "version of payload x"),
        (Description("x", metadata={"": "empty"}), "metadata key of payload x"),
        (Description("x", metadata={"key": "v" * 65536}), "65536 bytes"),
        (Description("x", metadata={"key": "\ud800"}), "is not text"),
    ],
)
def test_descriptions_have_limits(payloads, description, problem):
    """What readers would refuse is refused when it is packed, naming payload and field."""
    with pytest.raises(FileFormatError, match=problem):
        pack_v2([(description, payloads[0][1]), payloads[-1]])


def test_backends_are_a_set(payloads):
    """In whatever order and however often backends are given, the container is the same."""
    (description, content), portable = payloads
    packed = [
        pack_v2([(replace(description, backends=backends), content), portable]).container
        for backends in (("B", "A"), ("A", "B", "A"))
    ]
    assert packed[0] == packed[1]
    assert read_container(packed[0]).payloads[0].description.backends == ("A", "B")


def test_fat_files_do_not_nest(payloads):
    """A payload that says it needs the delegate of fat files is refused by name."""
    (description, content), portable = payloads
    nested = replace(description, backends=("NfatBackend",))
    with pytest.raises(InputError, match="payload xnnpack is a fat file itself"):
        pack_v2([(nested, content), portable])


@pytest.mark.parametrize("alignment", [0, 8, 24, 1 << 17])
def test_alignments_have_limits(payloads, alignment):
    """An alignment is a power of two from 16 to 65536."""
    with pytest.raises(FileFormatError, match="power of two"):
        pack_v2(payloads, alignment=alignment)


def test_payloads_without_their_blobs(packed):
    """A blob that is missing, or is another one, makes only those payloads unusable that need it, and is named."""
    container = packed.open()
    xnnpack, portable = container.payloads
    only_xnnpack = {container.manifest.blobs[index].digest for index in set(xnnpack.blobs) - set(portable.blobs)}
    lost = only_xnnpack.pop()
    some = read_container(packed.container, {key: blob for key, blob in packed.blobs.items() if key != lost})
    assert some.rebuild(portable)
    with pytest.raises(FileFormatError, match=f"payload xnnpack needs the blob {lost}, which is not in"):
        some.rebuild(xnnpack)
    short = read_container(packed.container, {**packed.blobs, lost: packed.blobs[lost][:-1]})
    with pytest.raises(FileFormatError, match=f"payload xnnpack needs the blob {lost} of"):
        short.verify(xnnpack)


def test_damage_is_found_and_named(packed, tmp_path):
    """Changed bytes of a blob are found by every way to a payload, which names the blob and writes no file."""
    container = packed.open()
    portable = container.payloads[-1]
    digest = container.manifest.blobs[portable.blobs[0]].digest
    changed = bytearray(packed.blobs[digest])
    changed[len(changed) // 2] ^= 1
    damaged = read_container(packed.container, {**packed.blobs, digest: changed})
    destination = tmp_path / "portable.pte"
    for use in (damaged.rebuild, damaged.verify, lambda payload: damaged.write(payload, destination)):
        with pytest.raises(FileFormatError, match=f"payload portable is damaged: the blob {digest} has other bytes"):
            use(portable)
    assert list(tmp_path.iterdir()) == []


def test_damage_of_the_inline_section_is_found(packed):
    """Changed inline bytes make the payload's digest wrong."""
    changed = bytearray(packed.container)
    changed[-1] ^= 1
    damaged = read_container(changed, packed.blobs)
    results = []
    for payload in damaged.payloads:
        try:
            damaged.verify(payload)
            results.append("good")
        except FileFormatError as error:
            results.append("damaged" if "do not have SHA-256" in str(error) else str(error))
    assert sorted(results) == ["damaged", "good"]


def test_size_known_before_parsing(packed):
    """Sixteen bytes tell how long the container is."""
    magic, version, manifest_size, inline_size = struct.unpack_from("<4sIII", packed.container)
    assert (magic, version) == (b"NFAT", 2)
    assert len(packed.container) == (16 + manifest_size + 15) // 16 * 16 + inline_size


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # upstream's, while it lowers
def test_three_backends_cost_what_one_does():
    """A model of linear layers for Vulkan, XNNPACK and portable is at most 1.02 times its largest payload."""
    import torch
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from torch.export import export

    torch.manual_seed(0)
    layers = [layer for _ in range(5) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    program = export(torch.nn.Sequential(*layers).eval(), (torch.randn(1, 1024),))
    payloads = []
    for name, backends, partitioner in (
        ("vulkan", ("VulkanBackend",), [VulkanPartitioner()]),
        ("xnnpack", ("XnnpackBackend",), [XnnpackPartitioner()]),
        ("portable", (), None),
    ):
        content = bytes(to_edge_transform_and_lower(program, partitioner=partitioner).to_executorch().buffer)
        payloads.append((Description(name, backends, ("forward",), "1.5.1"), content))
    packed = pack_v2(payloads)
    container = packed.open()
    assert [container.rebuild(payload) for payload in container.payloads] == [content for _, content in payloads]
    assert packed.size <= 1.02 * max(len(content) for _, content in payloads)
