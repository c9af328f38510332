"""If a payload cannot run, the next one does, and the report says why."""

import re
from dataclasses import replace

import pytest
from pteforge.errors import NoPayloadFits, PteforgeError
from pteforge.formats.nfat.container import pte_named_data, write_v2
from pteforge.formats.nfat.contents import Description
from pteforge.formats.pte.reader import read_pte
from pteforge.runtime import load
from pteforge.tests.mutations import damage_inline


@pytest.fixture(scope="module")
def one_method(lower) -> bytes:
    """A payload that has `forward` only, with inputs of another size."""
    import torch

    return lower(torch.nn.Linear(16, 4), 2, 16)


def test_reasons(make, one_method):
    """Payloads that are mislabelled, refused by their backend, incomplete or too new are passed over."""
    xnnpack, portable = make.entry("xnnpack")[1], make.entry("portable")[1]
    refused = bytearray(xnnpack)
    for delegate in (delegate for method in read_pte(xnnpack).methods for delegate in method.delegates):
        refused[delegate.extent.offset : delegate.extent.end] = bytes(delegate.extent.size)
    payloads = {
        "liar": ((), make.entry("vulkan")[1], "it needs VulkanBackend, which is not registered in this runtime$"),
        "modest": (("HexagonBackend",), portable, "it needs HexagonBackend"),
        "refused": (("XnnpackBackend",), bytes(refused), r"its method 'forward' does not load \("),
        "incomplete": ((), one_method, "it has no method 'hidden'$"),
        "new": ((), portable, "it needs a newer runtime"),
    }
    entries = [(Description(name, backends), content) for name, (backends, content, _) in payloads.items()]
    packed = make.pack(*entries, "portable")
    container = packed.open()
    *others, new, last = container.payloads
    manifest = replace(container.manifest, payloads=(*others, replace(new, features=4, extents=()), last))
    program = load(make.write(replace(packed, container=write_v2(manifest, bytes(container.inline)))))
    assert program.payload == "portable"
    for line, (name, (_, _, reason)) in zip(program.report[:-1], payloads.items(), strict=True):
        assert re.match(f"{name}: passed over: {reason}", line)


def test_damaged(make):
    """A payload whose bytes changed, in the container or in a blob, is passed over."""
    packed = make.pack((Description("first"), make.entry("xnnpack")[1]), "portable")
    file, digest = make.damaged_blob("first")
    for damaged, reason in (
        (make.write(damage_inline(packed, "first")), ".* SHA-256 "),
        (file, f"the blob {digest} has other bytes$"),
    ):
        program = load(damaged)
        assert program.payload == "portable"
        assert re.match(f"first: passed over: it is damaged: {reason}", program.report[0])


def test_blobs_missing_or_short(make):
    """If blobs are missing or too short, no payload runs, and the error names the reason for each."""
    packed = make.pack("xnnpack", "portable")
    with pytest.raises(NoPayloadFits) as missing:
        load(make.write(replace(packed, blobs={})))
    assert all(": passed over: it needs the blob " in line for line in missing.value.report)
    short = {key: blob[:-16] for key, blob in packed.blobs.items()}
    with pytest.raises(NoPayloadFits, match=r"portable: passed over: .*blob .* bytes; "):
        load(make.write(replace(packed, blobs=short)))


def test_name_with_a_nul(make):
    """A method with a NUL in its name cannot be loaded, which passes the payload over."""
    content = make.entry("portable")[1].replace(b"hidden", b"hid\0en")
    with pytest.raises(NoPayloadFits, match=r"first: passed over: .*'hid.x00en' does not load"):
        load(make.write(make.pack((Description("first"), content)), content))


def test_other_signature(make, lower, one_method, inputs):
    """Calling a payload whose arguments, or their sizes, differ from the file's is refused, as by the C++ library."""
    import torch

    for module, rows, problem in (
        (torch.nn.Flatten(0), 2, r"payload first of .*: of 'forward', output 0 is .* \[32\] instead"),
        (torch.nn.Linear(16, 8), 2, r"payload first .* output 0 has the shape \[2, 8\], .* gives \[2, 4\]"),
        (torch.nn.Linear(16, 4), 3, r"'forward': input 0 has the shape \[3, 16\], .* takes \[2, 16\]"),
    ):
        payload = Description("first"), lower(module, rows, 16)
        loaded = load(make.write(make.pack(payload), one_method))
        assert loaded.payload == "first"
        with pytest.raises(PteforgeError, match=problem):
            loaded.run("forward", [inputs(rows, 16)])


def test_version_1(make, fat, payloads, inputs, plainly):
    """Version 1 has the same rules; payloads that are empty, fat or no programs are passed over."""
    contents = {name: path.read_bytes() for name, path in payloads.items()}
    entries = (
        ("VulkanBackend", contents["vulkan"]),
        ("portable", b""),
        ("portable", b"\x07" * 999),
        ("portable", fat.read_bytes()),
        ("XnnpackBackend", contents["xnnpack"]),
    )
    program = load(make.version_1(*entries))
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
    """Payloads of version 1 may keep named data in the fat file, and find it there."""
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

    whole = payloads["xnnpack"].read_bytes()
    named = pte_named_data(memoryview(whole), read_pte(whole))
    taken_apart = deserialize_pte_binary(whole)
    taken_apart.named_data = None
    bare = bytes(serialize_pte_binary(taken_apart, extract_delegate_segments=True))
    assert len(bare) < len(whole) - sum(map(len, named.values())) + 4096
    program = load(make.version_1(("XnnpackBackend", bare), **named))
    x = [inputs(7)]
    (expected,) = plainly(payloads["xnnpack"], "forward", x)
    assert program.run("forward", x)[0].equal(expected)
    with pytest.raises(NoPayloadFits, match="method 'forward' does not load"):
        load(make.version_1(("XnnpackBackend", bare)))
