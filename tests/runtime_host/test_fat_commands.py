"""`pteforge extract`, `thin` and `run` on fat files."""

import re
from pathlib import Path

import numpy as np
import pytest
from pteforge.artifacts.digest import digest_file
from pteforge.runtime import load


@pytest.fixture
def damaged(make) -> Path:
    """A fat file, damaged.pte, whose first payload, `bad`, has other bytes than it should."""
    return make.damaged_blob("bad")[0]


@pytest.mark.parametrize("name", ["vulkan", "xnnpack", "portable"])
def test_extract(pteforge, fat, payloads, tmp_path, name):
    """An extracted payload is the plain file that was packed, byte for byte."""
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


def test_in_place(pteforge, make):
    """The output may be the input, which is replaced."""
    file = make.fat("xnnpack", "portable")
    whole = file.read_bytes()
    assert pteforge("thin", file, "--keep", "portable,xnnpack", "-o", file).code == 0
    assert file.read_bytes() == whole
    assert pteforge("extract", file, "xnnpack", "-o", file).code == 0
    assert file.read_bytes() == make.entry("xnnpack")[1]


def test_external_weights(pteforge, make, tmp_path):
    """Payloads with weights in a `.ptd` come out whole: the file's sibling is found, another one can be named."""
    file = make.external("xnnpack", "portable")
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


@pytest.mark.parametrize(
    "kept", [("xnnpack", "portable"), ("portable",), ("vulkan",), ("vulkan", "xnnpack", "portable")]
)
def test_thin(pteforge, fat, make, tmp_path, kept):
    """The result is the file that packing just those payloads makes, in whichever order they are named."""
    expected = make.write(make.pack(*kept), signature=make.entry(kept[-1])[1], name="expected.pte")
    said = pteforge("thin", fat, "--keep", ",".join(reversed(kept)), "-o", "thin.pte")
    assert (tmp_path / "thin.pte").read_bytes() == expected.read_bytes()
    assert said.out.endswith(f"payloads {', '.join(kept)}\n")
    assert said.err == (
        "" if "portable" in kept else "note: it has no fallback; the last payload needs VulkanBackend\n"
    )
    if "xnnpack" in kept or "portable" in kept:
        assert pteforge("run", "thin.pte").err.endswith(f"{next(name for name in kept if name != 'vulkan')}: ran\n")
    options = [option for name in kept for option in ("--keep", name)]
    told = pteforge("thin", fat, *options, "-o", "again.pte", "--json").json
    assert told == {"file": "again.pte", "payloads": list(kept), "size": expected.stat().st_size}
    assert (tmp_path / "again.pte").read_bytes() == expected.read_bytes()


def test_layouts_of_convolutions(pteforge, convolutions, tmp_path):
    """A weight in two layouts is stored once by `merge`, and `inspect` says what that takes; unless opted out of."""
    xnnpack, portable, x = convolutions
    files = xnnpack, portable
    once = pteforge("merge", *files, "-o", "once.pte", "--json").json["size"]
    twice = pteforge("merge", *files, "-o", "twice.pte", "--no-share-transposed", "--json").json["size"]
    weight = 64 * 32 * 9 * 4
    assert weight - 1000 < twice - once < weight + 1000
    payloads = pteforge("inspect", "once.pte", "--json").json["container"]["payloads"]
    assert [(payload["features"], payload["transposed"]) for payload in payloads] == [(1, weight), (0, 0)]
    said = pteforge("inspect", "once.pte").out
    assert "payload xnnpack needs a delegate with transposed extents (features 0x1), which share 72.0 KiB of it" in said
    assert "transposed" not in pteforge("inspect", "twice.pte").out
    for file, options, size in (
        ("once.pte", [], once),
        ("once.pte", ["--no-share-transposed"], twice),
        ("twice.pte", [], twice),
    ):
        told = pteforge("thin", file, "--keep", "xnnpack,portable", *options, "-o", "thin.pte", "--json").json
        assert told["size"] == size
    outputs = [load(tmp_path / name).run("forward", [x])[0] for name in ("once.pte", "twice.pte")]
    assert outputs[0].equal(outputs[1])
    assert load(tmp_path / "once.pte").payload == "xnnpack"
    assert pteforge("extract", "once.pte", "xnnpack", "-o", "plain.pte").code == 0
    assert (tmp_path / "plain.pte").read_bytes() == xnnpack.read_bytes()


def test_thin_version_1(pteforge, make, tmp_path):
    """A thin file of version 1 keeps its version and the named data."""
    entries = {name: make.entry(name)[1] for name in ("xnnpack", "portable")}
    named = {"weights": memoryview(bytes(range(256)) * 20)}
    portable = "portable", entries["portable"]
    file = make.version_1(("XnnpackBackend", entries["xnnpack"]), portable, name="both.pte", **named)
    expected = make.version_1(portable, name="expected.pte", **named)
    assert pteforge("thin", file, "--keep", "portable", "-o", "thin.pte").code == 0
    assert (tmp_path / "thin.pte").read_bytes() == expected.read_bytes()
    said = pteforge("extract", file, "XnnpackBackend", "-o", "out.pte")
    assert "not checked" in said.out
    assert (tmp_path / "out.pte").read_bytes() == entries["xnnpack"]


@pytest.mark.parametrize("out", ["", "nowhere/out.pte"])
def test_outputs_that_cannot_be_written(pteforge, fat, payloads, tmp_path, out):
    """A folder, or a file in a missing folder, is refused before any work."""
    for command in (("extract", fat, "xnnpack"), ("thin", fat, "--keep", "xnnpack"), ("merge", payloads["portable"])):
        pteforge(*command, "-o", tmp_path / out).refused(
            "output cannot be written to", "name a file in an existing folder"
        )
    assert list(tmp_path.iterdir()) == []


def test_full_disk(pteforge, fat, payloads, tmp_path, file_limit):
    """On a full disk commands fail with one message; the existing file stays, and no partial file is left."""
    out = tmp_path / "out.pte"
    out.write_text("before")
    merge = ("merge", payloads["xnnpack"], payloads["portable"])
    for command in (("extract", fat, "xnnpack"), ("thin", fat, "--keep", "xnnpack"), merge):
        with file_limit(30_000):
            said = pteforge(*command, "-o", out)
        assert said.code in {1, 2}
        assert said.err.startswith("error: ")
        assert "File too large" in said.err
        assert said.err.count("\n") == 1
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.pte", "before")]


def test_run_names_the_payload(pteforge, fat):
    """Standard error names the payload that ran and why others were passed over; outputs go to standard output."""
    said = pteforge("run", fat, "--method", "hidden")
    assert said.code == 0
    passed_over = "vulkan: passed over: it needs VulkanBackend, which is not registered in this runtime"
    times, *report = said.err.splitlines()
    assert report == [passed_over, "xnnpack: ran"]
    assert re.fullmatch(r"load \S+ ms, hidden \S+ ms", times)
    assert said.out.startswith("output 0: float32 [8, 128], min ")
    assert pteforge("run", fat, "--exclude", "vulkan,xnnpack").err.endswith("portable: ran\n")
    assert pteforge("run", fat, "--prefer", "portable,vulkan").err.splitlines()[1:] == ["portable: ran"]
    assert pteforge("run", fat, "--method", "rate").out == "output 0: 16000\n"


@pytest.mark.parametrize("name", ["xnnpack", "portable"])
def test_run_outputs(pteforge, fat, payloads, tmp_path, inputs, plainly, name):
    """Outputs on given inputs equal those of the plain file, bit for bit; the JSON holds the report."""
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
    assert set(plain.pop("milliseconds")) == {"load", "run"}
    assert plain == {"payload": None, "method": "forward", "report": [], "outputs": told["outputs"]}


def test_refusals(pteforge, fat, damaged, payloads, tmp_path):
    """Unknown payloads and methods, plain, missing and damaged files are refused; the existing file stays."""
    (tmp_path / "out.pte").write_text("before")
    known = "no payload 'mlx'; it has vulkan, xnnpack, portable"
    out = ("-o", "out.pte")
    for command, *telling in (
        (("extract", fat, "mlx", *out), known),
        (("extract", payloads["xnnpack"], "xnnpack", *out), "xnnpack.pte: not a fat .pte"),
        (("extract", "nowhere.pte", "xnnpack", *out), "nowhere.pte: cannot be read"),
        (("extract", damaged, "bad", *out), "damaged.pte: payload bad is damaged: the blob "),
        (("thin", fat, "--keep", "portable,mlx", *out), known),
        (("thin", fat, "--keep", " , ", *out), "--keep names no payload"),
        (("thin", damaged, "--keep", "bad,portable", *out), "damaged.pte: payload bad is damaged"),
        (("thin", payloads["portable"], "--keep", "portable", *out), "not a fat .pte"),
        (("run", fat, "--prefer", "mlx"), known),
        (("run", fat, "--method", "decode"), "no method 'decode'", "hidden"),
        (("run", payloads["portable"], "--exclude", "portable"), "portable.pte is not a fat file"),
        (
            ("run", fat, "--exclude", "portable", "--exclude", "xnnpack"),
            "none of the payloads can run here",
            "vulkan: passed over: it needs",
            "xnnpack: passed over: it is excluded",
        ),
    ):
        pteforge(*command).refused(*telling)
    assert (tmp_path / "out.pte").read_text() == "before"
    assert pteforge("extract", damaged, "portable", "-o", "out.pte").code == 0
    assert (tmp_path / "out.pte").read_bytes() == payloads["portable"].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.pte", "out.pte"]
