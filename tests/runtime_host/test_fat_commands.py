"""`pteforge extract`, `thin` and `run` on fat files."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pteforge.artifacts.digest import digest_file
from pteforge.artifacts.nfat.contents import DEFAULT_ALIGNMENT, Description
from pteforge.artifacts.nfat.fat_file import open_fat
from pteforge.artifacts.nfat.pack import PackedContainer
from pteforge.artifacts.nfat.v1 import pack_v1


@pytest.fixture
def damaged(make) -> Path:
    """A fat file whose first payload, `bad`, has other bytes than it should."""
    packed = make.pack((Description("bad"), make.other_weights()), "portable")
    container = packed.open()
    used = {payload.name: set(payload.blobs) for payload in container.payloads}
    digest = container.manifest.blobs[min(used["bad"] - used["portable"])].digest
    changed = bytearray(packed.blobs[digest])
    changed[0] ^= 1
    return make.write(replace(packed, blobs={**packed.blobs, digest: memoryview(changed)}), name="damaged.pte")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing more than `size` bytes to a file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", ["vulkan", "xnnpack", "portable"])
def test_extract(pteforge, fat, payloads, tmp_path, name):
    """A payload comes out as the plain file that went in, byte for byte."""
    said = pteforge("extract", fat, name, "-o", "out.pte")
    assert (said.code, said.err) == (0, "")
    assert digest_file(payloads[name]) in said.out
    assert (tmp_path / "out.pte").read_bytes() == payloads[name].read_bytes()
    assert pteforge("extract", fat, name, "--out", "out.pte", "--json").json == {
        "file": "out.pte",
        "payload": name,
        "size": payloads[name].stat().st_size,
        "sha256": digest_file(payloads[name]),
    }


def test_extract_over_the_fat_file(pteforge, make):
    """The output may be the input: it is replaced when the payload is whole."""
    file = make.fat("xnnpack", "portable")
    assert pteforge("extract", file, "xnnpack", "-o", file).code == 0
    assert file.read_bytes() == make.entry("xnnpack")[1]


def test_extract_damaged(pteforge, damaged, make, tmp_path):
    """A damaged payload is refused, and what was at its place stays; others of the file come out."""
    (tmp_path / "out.pte").write_text("before")
    pteforge("extract", damaged, "bad", "-o", "out.pte").refused("damaged.pte: payload bad is damaged: the blob ")
    assert (tmp_path / "out.pte").read_text() == "before"
    assert pteforge("extract", damaged, "portable", "-o", "out.pte").code == 0
    assert (tmp_path / "out.pte").read_bytes() == make.entry("portable")[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.pte", "out.pte"]


def test_extract_what_there_is_not(pteforge, fat, payloads, tmp_path):
    """Unknown payloads are refused with those there are; so are plain files."""
    pteforge("extract", fat, "mlx", "-o", "out.pte").refused("no payload 'mlx'; it has vulkan, xnnpack, portable")
    pteforge("extract", payloads["xnnpack"], "xnnpack", "-o", "out.pte").refused("xnnpack.pte: not a fat .pte")
    pteforge("extract", "nowhere.pte", "xnnpack", "-o", "out.pte").refused("nowhere.pte: cannot be read")
    assert list(tmp_path.iterdir()) == []


def test_data_outside(pteforge, make, tmp_path):
    """Payloads whose weights lie in a `.ptd` come out whole, with the one beside the file or one that is named."""
    from pteforge.tasks.stages.outer import write_fat

    file = tmp_path / "model.pte"
    write_fat(make.pack("xnnpack", "portable"), make.entry("portable")[1], file, data_path=tmp_path / "model.ptd")
    assert pteforge("extract", file, "portable", "-o", "out.pte").code == 0
    assert (tmp_path / "out.pte").read_bytes() == make.entry("portable")[1]
    (tmp_path / "model.ptd").rename(tmp_path / "other.ptd")
    for command in (("extract", file, "portable"), ("thin", file, "--keep", "portable")):
        pteforge(*command, "-o", "new.pte").refused("model.pte: payload portable needs the blob ", ".ptd")
        assert not (tmp_path / "new.pte").exists()
        assert pteforge(*command, "-o", "new.pte", "--data", "other.ptd").code == 0
        (tmp_path / "new.pte").unlink()
    pteforge("run", file).refused("none of the payloads can run here", "portable: passed over: it needs the blob ")
    assert pteforge("run", file, "--data", "other.ptd", "--json").json["payload"] == "xnnpack"
    said = pteforge("thin", file, "--data", "other.ptd", "--keep", "portable", "-o", "new.pte", "--data-out", "new.ptd")
    assert said.code == 0
    assert pteforge("extract", "new.pte", "portable", "-o", "out.pte").code == 0
    assert (tmp_path / "out.pte").read_bytes() == make.entry("portable")[1]


@pytest.mark.parametrize("kept", [("xnnpack", "portable"), ("vulkan", "portable"), ("portable",), ("vulkan",)])
def test_thin(pteforge, fat, make, tmp_path, kept):
    """What is left is the file that packing just those payloads gives, whatever the order they are named in."""
    expected = make.write(make.pack(*kept), signature=make.entry(kept[-1])[1], name="expected.pte")
    said = pteforge("thin", fat, "--keep", ",".join(reversed(kept)), "-o", "thin.pte")
    assert said.code == 0
    assert (tmp_path / "thin.pte").read_bytes() == expected.read_bytes()
    assert said.out.endswith(f"payloads {', '.join(kept)}\n")
    assert said.err == (
        "" if "portable" in kept else "note: it has no fallback; the last payload needs VulkanBackend\n"
    )
    options = [option for name in kept for option in ("--keep", name)]
    told = pteforge("thin", fat, *options, "-o", "again.pte", "--json").json
    assert told == {"file": "again.pte", "payloads": list(kept), "size": expected.stat().st_size}
    assert (tmp_path / "again.pte").read_bytes() == expected.read_bytes()


def test_thin_to_all(pteforge, fat, make):
    """Keeping all gives the same file, also in place."""
    file = make.fat("vulkan", "xnnpack", "portable")
    assert pteforge("thin", file, "--keep", "portable,xnnpack,vulkan", "-o", file).code == 0
    assert file.read_bytes() == fat.read_bytes()


def test_thin_version_1(pteforge, make, tmp_path):
    """A file of version 1 stays one, with the named data of its payloads."""
    entries = {name: make.entry(name)[1] for name in ("xnnpack", "portable")}
    named = {"weights": memoryview(bytes(range(256)) * 20)}

    def write(name: str, *kept: tuple[str, bytes]) -> Path:
        return make.write(PackedContainer(pack_v1(kept), named, DEFAULT_ALIGNMENT), name=name)

    file = write("both.pte", ("XnnpackBackend", entries["xnnpack"]), ("portable", entries["portable"]))
    expected = write("expected.pte", ("portable", entries["portable"]))
    assert pteforge("thin", file, "--keep", "portable", "-o", "thin.pte").code == 0
    assert (tmp_path / "thin.pte").read_bytes() == expected.read_bytes()
    said = pteforge("extract", file, "XnnpackBackend", "-o", "out.pte")
    assert "not checked" in said.out
    assert (tmp_path / "out.pte").read_bytes() == entries["xnnpack"]


def test_thin_of_what_there_is_not(pteforge, fat, damaged, payloads, tmp_path):
    """Unknown names, no names, damaged payloads and plain files are refused; what was at the output's place stays."""
    (tmp_path / "out.pte").write_text("before")
    pteforge("thin", fat, "--keep", "portable,mlx", "-o", "out.pte").refused("no payload 'mlx'; it has vulkan, ")
    pteforge("thin", fat, "--keep", " , ", "-o", "out.pte").refused("--keep names no payload")
    pteforge("thin", damaged, "--keep", "bad,portable", "-o", "out.pte").refused("damaged.pte: payload bad is damaged")
    pteforge("thin", payloads["portable"], "--keep", "portable", "-o", "out.pte").refused("not a fat .pte")
    assert (tmp_path / "out.pte").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.pte", "out.pte"]


@pytest.mark.parametrize("out", ["", "nowhere/out.pte"])
def test_outputs_that_cannot_be_written(pteforge, fat, payloads, tmp_path, out):
    """A folder, or a file in a folder that is not there, is refused before anything is done."""
    for command in (("extract", fat, "xnnpack"), ("thin", fat, "--keep", "xnnpack"), ("merge", payloads["portable"])):
        pteforge(*command, "-o", tmp_path / out).refused("output cannot be written to", "in a folder that is there")
    assert list(tmp_path.iterdir()) == []


def test_full_disk(pteforge, fat, payloads, tmp_path):
    """On a full disk commands fail with one message; what was there stays, and nothing half-written is left."""
    out = tmp_path / "out.pte"
    out.write_text("before")
    merge = ("merge", payloads["xnnpack"], payloads["portable"])
    for command in (("extract", fat, "xnnpack"), ("thin", fat, "--keep", "xnnpack"), merge):
        with files_of_at_most(30_000):
            said = pteforge(*command, "-o", out)
        assert said.code in {1, 2}
        assert said.err.startswith("error: ")
        assert "File too large" in said.err
        assert said.err.count("\n") == 1
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.pte", "before")]


def test_run_says_which(pteforge, fat):
    """The payload that ran is named on standard error, with why none before it did; outputs go to standard output."""
    said = pteforge("run", fat, "--method", "hidden")
    assert said.code == 0
    passed_over = "vulkan: passed over: it needs VulkanBackend, which is not registered in this runtime\n"
    assert said.err == f"{passed_over}xnnpack: ran\n"
    assert said.out.startswith("output 0: float32 [8, 128], min ")
    assert pteforge("run", fat, "--exclude", "vulkan,xnnpack").err.endswith("portable: ran\n")
    assert pteforge("run", fat, "--prefer", "portable,vulkan").err == "portable: ran\n"
    assert pteforge("run", fat, "--method", "rate").out == "output 0: 16000\n"


@pytest.mark.parametrize("name", ["xnnpack", "portable"])
def test_run_gives_what_the_payload_gives(pteforge, fat, payloads, tmp_path, inputs, plainly, name):
    """Outputs on given inputs are those of the plain file, bit for bit; the report is in the JSON."""
    np.savez(tmp_path / "x.npz", inputs(3).numpy())
    options = ("--input", "x.npz", "--output", "y.npz", "--json")
    told = pteforge("run", fat, "--prefer", name, *options).json
    assert told["payload"] == name
    assert told["report"][-1].startswith(f"{name}: chosen: ")
    assert told["outputs"][0]["shape"] == [3, 32]
    with np.load(tmp_path / "y.npz") as arrays:
        (found,) = (arrays[key] for key in arrays.files)
    (expected,) = plainly(payloads[name], "forward", [inputs(3)])
    assert np.array_equal(found, expected.numpy())
    plain = pteforge("run", payloads[name], *options).json
    assert plain == {"payload": None, "report": [], "outputs": told["outputs"]}


def test_run_refuses(pteforge, fat, payloads):
    """Names that are no payloads', methods that are not there and files that cannot run here are refused."""
    pteforge("run", fat, "--prefer", "mlx").refused("no payload 'mlx'; it has vulkan, xnnpack, portable")
    pteforge("run", fat, "--method", "decode").refused("no method 'decode'", "hidden")
    pteforge("run", payloads["portable"], "--exclude", "portable").refused("portable.pte is not a fat file")
    pteforge("run", fat, "--exclude", "portable", "--exclude", "xnnpack").refused(
        "none of the payloads can run here", "vulkan: passed over: it needs", "xnnpack: passed over: it is excluded"
    )


def test_payloads_of_thin_files_run(pteforge, fat, tmp_path):
    """A thin file runs like the file it is from."""
    pteforge("thin", fat, "--keep", "portable,vulkan", "-o", "thin.pte")
    whole = pteforge("run", fat, "--exclude", "xnnpack", "--json").json
    assert pteforge("run", "thin.pte", "--json").json["outputs"] == whole["outputs"]
    assert [each.name for each in open_fat(tmp_path / "thin.pte").container.payloads] == ["vulkan", "portable"]
