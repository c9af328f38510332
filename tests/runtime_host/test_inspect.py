"""`pteforge inspect`: what it prints about fat files, and that names from a file cannot control a terminal."""

import json
import random
from collections import Counter
from dataclasses import replace
from shutil import copy

import pytest
from pteforge.artifacts.digest import digest_file
from pteforge.errors import printable
from pteforge.formats.describe import payload_sizes
from pteforge.formats.nfat.container import open_fat
from pteforge.formats.nfat.contents import MappedExtent, Source
from pteforge.tests.mutations import mutate


def test_payloads_as_json(pteforge, fat, payloads):
    """The JSON has every payload by priority, with sizes, whole digests, backends and methods."""
    described = pteforge("inspect", fat, "--json").json
    container = described["container"]
    assert described["size"] == fat.stat().st_size
    assert (container["version"], container["outside"]) == (2, {"count": 0, "bytes": 0})
    assert container["sum"] == sum(path.stat().st_size for path in payloads.values())
    assert [payload["name"] for payload in container["payloads"]] == ["vulkan", "xnnpack", "portable"]
    for payload in container["payloads"]:
        path = payloads[payload["name"]]
        assert (payload["size"], payload["sha256"]) == (path.stat().st_size, digest_file(path))
        assert payload["methods"] == ["forward", "hidden", "rate", "label"]
        assert payload["executorch_version"] == "1.5.1"
        assert (payload["features"], payload["missing_blobs"]) == (0, [])
        assert payload["shared"] > 40_000 > payload["adds"] > 1000
    assert [payload["backends"] for payload in container["payloads"]] == [["VulkanBackend"], ["XnnpackBackend"], []]


def test_payloads_as_text(pteforge, fat, payloads):
    """The text has a row per payload with a short digest, both totals, and the methods of the file."""
    said = pteforge("inspect", fat)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0].startswith(f"{fat}: ")
    assert lines[0].endswith("NFAT version 2 with 3 payloads")
    assert lines[1].startswith("separately they have 1")
    assert " times its largest payload (" in lines[1]
    for place, (name, needs) in enumerate(
        (("vulkan", "VulkanBackend"), ("xnnpack", "XnnpackBackend"), ("portable", "nothing")), 1
    ):
        (row,) = [line.split() for line in lines if f" {name} " in line]
        digest = digest_file(payloads[name])
        assert row[:4] == [str(place), name, needs, "4"]
        assert row[-2:] == ["1.5.1", digest[:12]]
        assert digest not in said.out
    for part in (
        "method forward",
        "input 0: float32 [8, 64] (bound)",
        "output 0: float32 [8, 32] (bound)",
        "constant method rate: int 16000",
        'constant method label: string "speech"',
    ):
        assert part in said.out


def test_data_types_of_weights(pteforge, payloads):
    """The text says which bytes of weights are of which data type, also in XNNPACK's delegates, but not in others'."""
    matrices = pteforge("inspect", payloads["portable"], "--json").json["weights"]
    assert matrices["sizes"].keys() == {"float32"}
    assert pteforge("inspect", payloads["xnnpack"], "--json").json["weights"] == matrices
    (line,) = [line for line in pteforge("inspect", payloads["xnnpack"]).out.splitlines() if "weights: " in line]
    assert line.startswith("weights: float32 ")
    assert line.endswith("(100%)")
    assert "those of VulkanBackend are not read" in pteforge("inspect", payloads["vulkan"]).out


def test_what_quantization_reached(pteforge, payloads, tmp_path):
    """Inspecting says it if the provenance next to the file is that of the file."""
    copy(payloads["xnnpack"], file := tmp_path / "file.pte")
    left = [{"name": "table", "operators": ["aten.embedding"], "elements": 9, "why": "quantizers leave tables"}]
    fields = {"sizes": {"int8": 1, "float32": 36}, "elements": 10, "quantized": 1, "left": left}
    provenance = {
        "model": "net",
        "recipe": "int8",
        "file": {"sha256": digest_file(file), "size": file.stat().st_size},
        "data": None,
        "findings": {"quantization": [{"method": "encode", **fields}]},
    }
    file.with_suffix(".json").write_text(json.dumps(provenance), encoding="utf-8")
    text = "10% of the weights are integers; in floating point: table (quantizers leave tables)"
    assert text in pteforge("inspect", file).out.splitlines()
    assert pteforge("inspect", file, "--json").json["quantization"][0]["left"] == left
    provenance["file"]["sha256"] = "0" * 64
    file.with_suffix(".json").write_text(json.dumps(provenance), encoding="utf-8")
    assert "quantization" not in pteforge("inspect", file, "--json").json


def test_plain_files_have_no_container(pteforge, payloads):
    """For a plain file the container is null and the rest is there."""
    described = pteforge("inspect", payloads["xnnpack"], "--json").json
    assert described["container"] is None
    assert described["backends"] == ["XnnpackBackend"]
    assert "constant method rate: int 16000\n" in pteforge("inspect", payloads["portable"]).out


def test_external_weights(pteforge, make):
    """Blobs in a `.ptd` are counted; without that file, each payload says how many it lacks."""
    file, packed = make.external("xnnpack", "portable"), make.pack("xnnpack", "portable")
    data = file.with_suffix(".ptd")
    stored = {"count": len(packed.blobs), "bytes": sum(map(len, packed.blobs.values()))}
    for more in ((), ("--data", data)):  # the sibling file is found
        container = pteforge("inspect", file, *more, "--json").json["container"]
        assert container["outside"] == stored
        assert [payload["missing_blobs"] for payload in container["payloads"]] == [[], []]
    assert f"external, in .ptd files: {stored['count']} blob" in pteforge("inspect", file).out
    data.rename(make.folder / "elsewhere.ptd")
    container = pteforge("inspect", file, "--json").json["container"]
    assert all(payload["missing_blobs"] for payload in container["payloads"])
    said = pteforge("inspect", file)
    assert said.code == 0
    assert "payload xnnpack lacks 1 blob: --data names the file" in said.out
    assert "--data names" not in pteforge("inspect", file, "--data", "elsewhere.ptd").out


def test_version_1(pteforge, make):
    """Containers of version 1 have neither digests nor methods, and share nothing."""
    entries = [("XnnpackBackend", make.entry("xnnpack")[1]), ("portable", make.entry("portable")[1])]
    file = make.version_1(*entries)
    container = pteforge("inspect", file, "--json").json["container"]
    assert container["version"] == 1
    for payload, (_, content) in zip(container["payloads"], entries, strict=True):
        assert (payload["size"], payload["adds"], payload["shared"]) == (len(content), len(content), 0)
        assert (payload["sha256"], payload["methods"]) == (None, [])
    assert "NFAT version 1 with 2 payloads" in pteforge("inspect", file).out


def test_sizes_are_those_of_the_bytes(fat):
    """`adds` and `shared` equal a count of the users of every stored byte."""
    manifest = open_fat(fat).container.manifest
    users: dict[tuple[Source, int, int], set[int]] = {}
    for index, payload in enumerate(manifest.payloads):
        for extent in payload.extents:
            if extent.source is not Source.ZEROS:
                for offset in range(extent.offset, extent.offset + extent.size):
                    users.setdefault((extent.source, extent.blob, offset), set()).add(index)
    alone = Counter(next(iter(each)) for each in users.values() if len(each) == 1)
    shared = Counter(index for each in users.values() if len(each) > 1 for index in each)
    for index, sizes in enumerate(payload_sizes(manifest)):
        assert sizes == (alone[index], shared[index])


def test_sizes_of_overlapping_stretches(fat):
    """A range that one payload uses twice counts once; adjacent ranges are not shared."""
    payload = open_fat(fat).container.payloads[0]
    manifest = open_fat(fat).container.manifest
    first = replace(payload, extents=(MappedExtent(0, 32, Source.INLINE, 0), MappedExtent(32, 32, Source.INLINE, 16)))
    second = replace(payload, extents=(MappedExtent(0, 16, Source.INLINE, 48), MappedExtent(16, 64, Source.ZEROS)))
    third = replace(payload, extents=(MappedExtent(0, 8, Source.INLINE, 40),))
    sizes = payload_sizes(replace(manifest, payloads=(first, second, third)))
    assert sizes == [(40, 8), (16, 0), (0, 8)]


@pytest.fixture
def evil(make):
    """A plain file whose second method is called ``<ESC>[31mn``, which makes terminals write red."""
    file = make.folder / "evil.pte"
    content = make.entry("portable")[1]
    assert content.count(b"hidden") == 1
    file.write_bytes(content.replace(b"hidden", b"\x1b[31mn"))
    return file


def test_control_characters_are_shown(pteforge, evil):
    """Control characters in names are escaped, by inspect and in messages, for plain and fat files."""
    plain = pteforge("inspect", evil)
    merged = pteforge("merge", evil, "-o", "fat.pte")
    fat = pteforge("inspect", "fat.pte")
    refused = pteforge("run", evil, "--method", "other")
    for said in (plain, merged, fat, refused):
        assert "\x1b" not in said.out + said.err
    for said in (plain, fat):
        assert "method \\x1b[31mn\n" in said.out
    refused.refused("\\x1b[31mn")
    assert pteforge("inspect", evil, "--json").json["methods"][1]["name"] == "\x1b[31mn"


def test_printable():
    """Printable text stays, in any language; what moves the cursor, hides or reverses text is escaped."""
    assert printable("größe 模型 a b") == "größe 模型 a b"
    assert printable("a\x1b[2Jb\r\n\x00\x9b\u202e") == "a\\x1b[2Jb\\r\\n\\x00\\x9b\\u202e"
    assert printable("a\n\tb\x07", keep="\n\t") == "a\n\tb\\x07"


def test_damaged_files(pteforge, fat, tmp_path):
    """A damaged fat file is printed, without escape characters, or refused with one message."""
    good, end = fat.read_bytes(), open_fat(fat).program.methods[0].delegates[0].extent.end
    chance = random.Random(5)  # noqa: S311 - the same files each time
    shown = 0
    for _ in range(120):
        (tmp_path / "changed.pte").write_bytes(mutate(good, chance, end))
        said = pteforge("inspect", "changed.pte")
        if said.code == 0:
            assert said.err == ""
            assert "\x1b" not in said.out
            shown += 1
        else:
            said.refused("changed.pte")
    assert 20 < shown < 100


def test_order_in_memory(pteforge, tmp_path):
    """An app has to pass inputs in the order of dimensions that the file was exported with, so it is said."""
    import torch
    from executorch.exir import to_edge_transform_and_lower

    image = torch.ones(1, 3, 4, 4).to(memory_format=torch.channels_last)
    program = torch.export.export(torch.nn.ReLU(), (image,))
    file = tmp_path / "net.pte"
    file.write_bytes(to_edge_transform_and_lower(program).to_executorch().buffer)
    assert "input 0: float32 [1, 3, 4, 4], in memory by dimensions [0, 2, 3, 1]\n" in pteforge("inspect", file).out
