"""`pteforge.runtime.load`: which payload it takes, and that what it gives is what the payload gives."""

from __future__ import annotations

import re
import resource
import tempfile
from dataclasses import replace

import pytest
from pteforge.artifacts.nfat.contents import DEFAULT_ALIGNMENT, Description
from pteforge.artifacts.nfat.named_data import pte_named_data
from pteforge.artifacts.nfat.pack import PackedContainer
from pteforge.artifacts.nfat.v1 import pack_v1
from pteforge.artifacts.pte.reader import read_pte
from pteforge.errors import FileFormatError, InputError, NoPayloadFits, PteforgeError
from pteforge.runtime import load

NOT_REGISTERED = "vulkan: passed over: it needs VulkanBackend, which is not registered in this runtime"


def equal(left, right) -> bool:
    """Whether two lists of tensors are equal bit for bit."""
    import torch

    return len(left) == len(right) > 0 and all(map(torch.equal, left, right))


def test_order_is_priority(fat, payloads, inputs, plainly):
    """The first payload that can run here runs; its outputs are the plain file's, for each method and batch size."""
    program = load(fat)
    assert program.payload == "xnnpack"
    size = payloads["xnnpack"].stat().st_size
    assert program.report == (NOT_REGISTERED, f"xnnpack: chosen: 0 bytes in place, {size} copied")
    assert program.methods == ("forward", "hidden", "rate", "label")
    for method in ("forward", "hidden"):
        for batch in (2, 8, 1):
            x = [inputs(batch)]
            assert equal(program.run(method, x), plainly(payloads["xnnpack"], method, x))


def test_exclude(fat, payloads, inputs, plainly):
    """A payload that is excluded is not tried, and the report says so; the next one runs."""
    program = load(str(fat), exclude=["xnnpack"])
    assert program.payload == "portable"
    assert program.report[:2] == (NOT_REGISTERED, "xnnpack: passed over: it is excluded")
    x = [inputs(3)]
    assert equal(program.run("forward", x), plainly(payloads["portable"], "forward", x))


def test_prefer(fat, make):
    """Preferred payloads come first, in the order given; the others keep theirs. One that cannot run is passed over."""
    assert load(fat, prefer=["portable"]).report[0].startswith("portable: chosen")
    assert load(fat, prefer=["vulkan", "portable"]).payload == "portable"
    assert load(make.fat("portable", "vulkan", "xnnpack"), prefer=["vulkan"]).payload == "portable"


def test_names_that_there_are_not(fat):
    """A name that is no payload's is refused with those there are, as is one that is preferred and excluded."""
    for wish in ({"prefer": ["xnnpak"]}, {"exclude": ["portable", "xnnpak"]}):
        with pytest.raises(InputError, match=r"model\.pte has no payload 'xnnpak'; it has vulkan, xnnpack, portable"):
            load(fat, **wish)
    with pytest.raises(InputError, match="'portable' cannot be preferred and excluded"):
        load(fat, prefer=["portable"], exclude=["portable"])
    for single in ({"prefer": "portable"}, {"exclude": "xnnpack"}, {"data_files": fat.with_suffix(".ptd")}):
        with pytest.raises(TypeError, match="has to be in a list"):
            load(fat, **single)


def test_nothing_fits(fat):
    """Where no payload is left, the error has a line for each, which says why, and names the file."""
    with pytest.raises(NoPayloadFits) as raised:
        load(fat, exclude=["portable", "xnnpack"])
    excluded = [f"{name}: passed over: it is excluded" for name in ("xnnpack", "portable")]
    assert raised.value.report == (NOT_REGISTERED, *excluded)
    assert str(raised.value) == "\n  ".join([f"{fat}: none of the payloads can run here:", *raised.value.report])


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
    assert equal(program.run("forward", x), plainly(payloads["xnnpack"], "forward", x))


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
    assert equal(program.run("forward", x), plainly(payloads["xnnpack"], "forward", x))
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


def test_malformed_container(make):
    """A malformed container is refused as a whole; so are files that are no programs or not there."""
    packed = make.pack("portable")
    with pytest.raises(FileFormatError, match=r"fat\.pte: the container has \d+ bytes"):
        load(make.write(replace(packed, container=packed.container[:-1])))
    damaged = make.folder / "text.pte"
    damaged.write_text("not a program")
    with pytest.raises(FileFormatError, match=r"text\.pte: not a \.pte"):
        load(damaged)
    with pytest.raises(InputError, match=r"nowhere\.pte: cannot be read"):
        load(make.folder / "nowhere.pte")


def test_constant_methods(fat, payloads):
    """Constants are methods like any other, in fat files and in plain ones."""
    for file in (fat, payloads["portable"]):
        program = load(file)
        assert (program.run("rate"), program.run("label")) == ([16000], ["speech"])


def test_temporary_files_go(fat, inputs, plainly, payloads, tmp_path, monkeypatch):
    """Rebuilt payloads are gone from the disk before the program first runs, and it runs all the same."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = load(fat, exclude=["xnnpack"])
    assert list(tmp_path.iterdir()) == []
    x = [inputs(4)]
    assert equal(program.run("hidden", x), plainly(payloads["portable"], "hidden", x))


def test_no_space(fat):
    """Where a payload cannot be rebuilt, that is the error, and not that the payload does not fit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, before[1]))
    try:
        with pytest.raises(PteforgeError, match=r"cannot be rebuilt in a temporary folder: .*\$TMPDIR") as raised:
            load(fat)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not isinstance(raised.value, NoPayloadFits)


def test_outputs_are_kept(fat, inputs):
    """Outputs of one call are not changed by the next, nor by another method, which uses the same memory."""
    program = load(fat)
    (first,) = program.run("forward", [inputs(2)])
    before = first.clone()
    program.run("hidden", [inputs(8)])
    (second,) = program.run("forward", [inputs(2) + 1])
    assert equal([first], [before])
    assert not equal([first], [second])


def test_plain(payloads, inputs, plainly):
    """A plain file runs as it is; there is no payload to speak of."""
    program = load(payloads["xnnpack"])
    assert (program.payload, program.report) == (None, ())
    x = [inputs(5)]
    assert equal(program.run("forward", x), plainly(payloads["xnnpack"], "forward", x))


def test_plain_files_have_no_payloads(payloads, tmp_path):
    """Of a plain file nothing can be preferred or excluded; one that needs another backend is named with it."""
    for wish in ({"prefer": ["portable"]}, {"exclude": ["portable"]}):
        with pytest.raises(InputError, match=r"xnnpack\.pte is not a fat file"):
            load(payloads["xnnpack"], **wish)
    with pytest.raises(InputError, match=r"vulkan\.pte cannot run here: it needs VulkanBackend"):
        load(payloads["vulkan"])
    with pytest.raises(InputError, match=r"takes one \.ptd file"):
        load(payloads["portable"], data_files=[tmp_path / "a.ptd", tmp_path / "b.ptd"])


@pytest.mark.parametrize("kind", ["fat", "plain"])
def test_calls_that_do_not_fit(kind, fat, payloads, inputs):
    """A method that is not there is refused with those that are; inputs that do not fit are the runtime's error."""
    file = fat if kind == "fat" else payloads["portable"]
    program = load(file)
    with pytest.raises(InputError, match=r"no method 'decode'; it has 'forward', 'hidden', 'rate', 'label'"):
        program.run("decode", [])
    for wrong in ([inputs(2, 63)], [inputs(9)], [], [inputs(2), inputs(2)], ["text"]):
        with pytest.raises(PteforgeError, match="cannot run 'forward'"):
            program.run("forward", wrong)
    assert program.run("forward", [inputs(2)])[0].shape == (2, 32)
