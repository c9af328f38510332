"""Payloads that do not run, whatever the reason: the next one does, and the report says why."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from pteforge.artifacts.nfat.contents import DEFAULT_ALIGNMENT, Description
from pteforge.artifacts.nfat.named_data import pte_named_data
from pteforge.artifacts.nfat.pack import PackedContainer
from pteforge.artifacts.nfat.v1 import pack_v1
from pteforge.artifacts.pte.reader import read_pte
from pteforge.errors import NoPayloadFits, PteforgeError
from pteforge.runtime import load


def passed_over(file, *, then: str = "portable") -> str:
    """Why the first payload does not run, and checks that another one does."""
    program = load(file)
    assert program.payload == then
    first = program.report[0]
    assert first.startswith("first: passed over: ")
    return first.removeprefix("first: passed over: ")


def test_damaged_in_the_container(make):
    """A payload whose bytes in the container changed is passed over: its SHA-256 is another one."""
    packed = make.pack((Description("first"), make.entry("xnnpack")[1]), "portable")
    assert re.match("it is damaged: .* SHA-256 ", passed_over(make.write(make.damage_inline(packed, "first"))))


def test_damaged_in_a_blob(make):
    """A payload with a changed blob is passed over; one that does not use that blob runs."""
    packed = make.pack((Description("first"), make.other_weights()), "portable")
    container = packed.open()
    used = {payload.name: set(payload.blobs) for payload in container.payloads}
    digest = container.manifest.blobs[min(used["first"] - used["portable"])].digest
    damaged = bytearray(packed.blobs[digest])
    damaged[100] ^= 1
    file = make.write(replace(packed, blobs={**packed.blobs, digest: memoryview(damaged)}))
    assert passed_over(file) == f"it is damaged: the blob {digest} has other bytes"


def test_blobs_missing_or_short(make):
    """Without its blobs, or with shorter ones, no payload runs; the error says so of each."""
    packed = make.pack("xnnpack", "portable")
    with pytest.raises(NoPayloadFits) as missing:
        load(make.write(replace(packed, blobs={})))
    assert all(": passed over: it needs the blob " in line for line in missing.value.report)
    short = {key: blob[:-16] for key, blob in packed.blobs.items()}
    with pytest.raises(NoPayloadFits, match=r"portable: passed over: it needs the blob .* bytes; it has"):
        load(make.write(replace(packed, blobs=short)))


def test_mislabelled(make):
    """What a payload says it needs is a hint: one that needs more than that is passed over before it is loaded."""
    liar = Description("first"), make.entry("vulkan")[1]
    assert passed_over(make.fat(liar, "portable")) == "it needs VulkanBackend, which is not registered in this runtime"


def test_needs_less_than_it_says(make):
    """A payload that claims to need what is not here is passed over, as on every runtime, though it could run."""
    modest = Description("first", ("HexagonBackend",)), make.entry("portable")[1]
    assert "HexagonBackend" in passed_over(make.fat(modest, "xnnpack"), then="xnnpack")


def test_does_not_load(make):
    """A payload whose backend is here and refuses it is passed over: here, its data is for another backend."""
    content = make.entry("vulkan")[1].replace(b"VulkanBackend", b"XnnpackBackend"[:13])
    assert b"XnnpackBacken" in content
    # The id has one letter less, so that it is as long; what it stands for is a matter of the registry.
    assert "XnnpackBacken" in passed_over(make.fat((Description("first"), content), "portable"))
    damaged = bytearray(make.entry("xnnpack")[1])
    for method in read_pte(bytes(damaged)).methods:
        for delegate in method.delegates:
            damaged[delegate.offset : delegate.offset + delegate.size] = bytes(delegate.size)
    why = passed_over(make.fat((Description("first", ("XnnpackBackend",)), bytes(damaged)), "portable"))
    assert why.startswith("its method 'forward' does not load (")


def test_lacks_a_method(make, one_method):
    """A payload without one of the file's methods is passed over."""
    assert passed_over(make.fat((Description("first"), one_method), "portable")) == "it has no method 'hidden'"


def test_name_with_a_nul(make):
    """A method whose name the runtime reads otherwise than its file has it cannot be loaded, and is no other error."""
    content = make.entry("portable")[1].replace(b"hidden", b"hid\0en")
    with pytest.raises(NoPayloadFits, match=r"first: passed over: its method 'hid.x00en' does not load"):
        load(make.write(make.pack((Description("first"), content)), content))


def lower(module, *shape: int) -> bytes:
    """A module as a plain file whose only method is `forward`."""
    import torch
    from executorch.exir import to_edge_transform_and_lower
    from torch.export import export

    program = export(module.eval(), (torch.ones(shape),))
    return bytes(to_edge_transform_and_lower(program).to_executorch().buffer)


@pytest.fixture(scope="module")
def one_method() -> bytes:
    """A payload that has `forward` only, and that with inputs of another size."""
    import torch

    return lower(torch.nn.Linear(16, 4), 2, 16)


def test_other_signature(make, one_method, inputs):
    """A payload whose arguments are others than the file's is refused when it is called, as by the C++ library."""
    import torch

    other_rank = lower(torch.nn.Flatten(0), 2, 16)
    loaded = load(make.write(make.pack((Description("first"), other_rank)), one_method))
    assert loaded.payload == "first"
    with pytest.raises(PteforgeError, match=r"payload first of .*: of 'forward', output 0 is .* \[32\] instead"):
        loaded.run("forward", [inputs(2, 16)])


def test_other_sizes(make, one_method, inputs):
    """So is a call in which sizes are not those of the file, though the payload takes or gives them."""
    import torch

    wider = lower(torch.nn.Linear(16, 8), 2, 16)
    loaded = load(make.write(make.pack((Description("first"), wider)), one_method))
    with pytest.raises(PteforgeError, match=r"payload first .* output 0 has the shape \[2, 8\], .* gives \[2, 4\]"):
        loaded.run("forward", [inputs(2, 16)])
    longer = lower(torch.nn.Linear(16, 4), 3, 16)
    loaded = load(make.write(make.pack((Description("first"), longer)), one_method))
    with pytest.raises(PteforgeError, match=r"'forward': input 0 has the shape \[3, 16\], .* takes \[2, 16\]"):
        loaded.run("forward", [inputs(3, 16)])


def version_1(*entries: tuple[str, bytes]) -> PackedContainer:
    """A container of version 1, which takes whatever it is given; it has no blobs."""
    return PackedContainer(pack_v1(entries), {}, DEFAULT_ALIGNMENT)


def test_version_1(make, fat, payloads, inputs, plainly):
    """Containers of version 1 have the same rules. What is no program, or a fat one, or empty, is passed over."""
    contents = {name: path.read_bytes() for name, path in payloads.items()}
    entries = (
        ("VulkanBackend", contents["vulkan"]),
        ("portable", b""),
        ("portable", b"\x07" * 999),
        ("portable", fat.read_bytes()),
        ("XnnpackBackend", contents["xnnpack"]),
    )
    program = load(make.write(version_1(*entries)))
    empty, garbage, nested = (line.partition(": passed over: ")[2] for line in program.report[1:4])
    assert program.report[0].endswith("it needs VulkanBackend, which is not registered in this runtime")
    assert empty == "it is empty"
    assert garbage.startswith("it is not a program that this runtime can load (")
    assert nested == "it is a fat program itself, and those do not nest"
    assert program.payload == "XnnpackBackend"
    x = [inputs(2)]
    (expected,) = plainly(payloads["xnnpack"], "forward", x)
    assert program.run("forward", x)[0].equal(expected)


def test_shared_data_of_version_1(make, payloads, inputs, plainly):
    """Payloads of version 1 may keep named data in the fat file: it is there when they are loaded."""
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

    whole = payloads["xnnpack"].read_bytes()
    named = pte_named_data(memoryview(whole), read_pte(whole))
    taken_apart = deserialize_pte_binary(whole)
    taken_apart.named_data = None
    bare = bytes(serialize_pte_binary(taken_apart, extract_delegate_segments=True))
    assert len(bare) < len(whole) - sum(map(len, named.values())) + 4096
    packed = replace(version_1(("XnnpackBackend", bare)), blobs=named)
    program = load(make.write(packed))
    x = [inputs(7)]
    (expected,) = plainly(payloads["xnnpack"], "forward", x)
    assert program.run("forward", x)[0].equal(expected)
    with pytest.raises(NoPayloadFits, match="its method 'forward' does not load"):
        load(make.write(version_1(("XnnpackBackend", bare))))


def test_needs_a_newer_runtime(make):
    """A payload with an extension that is not known is passed over."""
    from pteforge.artifacts.nfat.contents import Manifest
    from pteforge.artifacts.nfat.v2 import write_v2

    packed = make.pack((Description("first"), make.entry("xnnpack")[1]), "portable")
    container = packed.open()
    first, portable = container.payloads
    payloads = replace(first, features=4, extents=()), portable
    manifest = Manifest(payloads, container.manifest.blobs, container.manifest.alignment)
    file = make.write(replace(packed, container=write_v2(manifest, bytes(container.inline))))
    assert passed_over(file).startswith("it needs a newer runtime")
