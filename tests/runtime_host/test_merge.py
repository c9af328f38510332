"""`pteforge merge`: fat files of plain ones."""

import shutil
from dataclasses import replace

import pytest
from pteforge.formats.nfat.container import open_fat
from pteforge.formats.pte.contents import InstructionCounts, Method, ScalarSpec, TensorSpec
from pteforge.runtime import load
from pteforge.runtime.signature import call_mismatch, signature_mismatch


def test_merge(pteforge, payloads, tmp_path, inputs, plainly):
    """The payloads are the files in order, named after the files or as given, and run with the same outputs."""
    said = pteforge("merge", payloads["vulkan"], f"cpu={payloads['xnnpack']}", payloads["portable"], "-o", "fat.pte")
    assert (said.code, said.err) == (0, "")
    assert "payloads vulkan, cpu, portable; separately they have" in said.out
    container = open_fat(tmp_path / "fat.pte").container
    files = {"vulkan": payloads["vulkan"], "cpu": payloads["xnnpack"], "portable": payloads["portable"]}
    assert [payload.name for payload in container.payloads] == list(files)
    for payload in container.payloads:
        assert b"".join(container.verified(payload)) == files[payload.name].read_bytes()
        assert payload.description.methods == ("forward", "hidden", "rate", "label")
    backends = [payload.description.backends for payload in container.payloads]
    assert backends == [("VulkanBackend",), ("XnnpackBackend",), ()]
    for exclude, name in (([], "xnnpack"), (["cpu"], "portable")):
        program = load(tmp_path / "fat.pte", exclude=exclude)
        for method in ("forward", "hidden"):
            (found,) = program.run(method, [inputs(6)])
            (expected,) = plainly(payloads[name], method, [inputs(6)])
            assert found.equal(expected)
        assert program.run("rate") == [16000]


def test_merge_as_json(pteforge, payloads, tmp_path):
    """The JSON has names and sizes; weights may go to another file."""
    files = [payloads["xnnpack"], payloads["portable"]]
    told = pteforge("merge", *files, "-o", "fat.pte", "--json").json
    alone = sum(path.stat().st_size for path in files)
    size = (tmp_path / "fat.pte").stat().st_size
    assert told == {"file": "fat.pte", "payloads": ["xnnpack", "portable"], "size": size, "sum": alone}
    apart = pteforge("merge", *files, "-o", "two.pte", "--data-out", "two.ptd", "--json").json
    sizes = [(tmp_path / name).stat().st_size for name in ("two.pte", "two.ptd")]
    assert sizes[0] < 20_000 < sizes[1]
    assert apart["size"] == sum(sizes)
    assert load(tmp_path / "two.pte", data_files=[tmp_path / "two.ptd"]).payload == "xnnpack"


def test_merge_is_reproducible(pteforge, payloads, tmp_path):
    """Equal files make equal bytes, wherever they are; the output may be an input."""
    pteforge("merge", payloads["xnnpack"], payloads["portable"], "-o", "first.pte")
    for name in ("xnnpack", "portable"):
        shutil.copy(payloads[name], tmp_path)
    assert pteforge("merge", "xnnpack.pte", "portable.pte", "-o", "portable.pte").code == 0
    assert (tmp_path / "portable.pte").read_bytes() == (tmp_path / "first.pte").read_bytes()


def test_names(pteforge, payloads, tmp_path):
    """Two payloads of one name, and invalid names, are refused with what to do."""
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        folder.mkdir()
        shutil.copy(payloads["portable"], folder / "model.pte")
    said = pteforge("merge", "a/model.pte", "b/model.pte", "-o", "fat.pte")
    said.refused("a/model.pte and b/model.pte would both be called model", "NAME=b/model.pte")
    assert pteforge("merge", "fast=a/model.pte", "b/model.pte", "-o", "fat.pte", "--json").json["payloads"] == [
        "fast",
        "model",
    ]
    shutil.copy(payloads["portable"], tmp_path / "my model.pte")
    pteforge("merge", "my model.pte", "-o", "out.pte").refused("my model.pte: ", "'my model'", "NAME=my model.pte")
    shutil.copy(payloads["portable"], tmp_path / "lr=3.pte")
    assert pteforge("merge", "lr=3.pte", "-o", "out.pte", "--json").json["payloads"] == ["lr=3"]
    assert pteforge("merge", "x=lr=3.pte", "-o", "out.pte", "--json").json["payloads"] == ["x"]
    pteforge("merge", "=a/model.pte", "-o", "none.pte").refused("a/model.pte", "1 to 64")
    assert not (tmp_path / "none.pte").exists()


def test_files_that_are_no_payloads(pteforge, fat, payloads, tmp_path):
    """Fat files, other files and missing ones are refused by name; so is a last payload that needs a backend."""
    (tmp_path / "text.pte").write_text("not a program")
    portable = payloads["portable"]
    for files, *telling in (
        ((fat, portable), "model.pte is a fat file itself", "extract"),
        (("text.pte", portable), "text.pte: not a .pte"),
        (("nowhere.pte", portable), "nowhere.pte: cannot be read"),
        (("x=nowhere.pte", portable), "nowhere.pte: cannot be read"),
        ((portable, payloads["xnnpack"]), "xnnpack.pte is the last payload and needs XnnpackBackend", "portable"),
    ):
        pteforge("merge", *files, "-o", "out.pte").refused(*telling)
    assert [path.name for path in tmp_path.iterdir()] == ["text.pte"]


def test_signatures(pteforge, lower, payloads, tmp_path):
    """Payloads have the same methods with the same arguments; else file, method and argument are named."""
    import torch

    def write(name, module, *shape, **options):
        path = tmp_path / f"{name}.pte"
        path.write_bytes(lower(module, *shape, **options))
        return path

    relu = torch.nn.ReLU()
    last, encode = write("last", relu, 2, 3), write("encode", relu, 2, 3, method="encode")
    wrong = {
        write("longer", relu, 2, 4): "method 'forward': input 0 is float32 [2, 4] instead of float32 [2, 3], as in ",
        write("flat", torch.nn.Flatten(0), 2, 3): "method 'forward': output 0 is float32 [6] instead of float32 [2, 3]",
        encode: "has no method 'forward', which ",
    }
    for path, problem in wrong.items():
        pteforge("merge", path, last, "-o", "fat.pte").refused(str(path), problem, str(last))
    said = pteforge("merge", payloads["xnnpack"], encode, "-o", "fat.pte")
    said.refused("xnnpack.pte has no method 'encode', which ", "encode.pte has")
    assert not (tmp_path / "fat.pte").exists()


TENSOR = TensorSpec("float32", (2, 3), (0, 1), "bound", 24)
METHOD = Method("forward", (TENSOR, ScalarSpec("int", 3)), (TENSOR,), (), (), (), (), InstructionCounts(kernel_calls=1))
CONSTANT = Method("rate", (), (ScalarSpec("double", float("nan")),), (), (), (), (), InstructionCounts())


REORDERED = "output 0 is float32 up to [2, 3] in dimension order [1, 0] instead of float32 up to [2, 3]"


@pytest.mark.parametrize(
    ("method", "changes", "difference"),
    [
        (METHOD, {"inputs": (TENSOR,)}, "it has 1 input instead of 2"),
        (METHOD, {"outputs": ()}, "it has 0 outputs instead of 1"),
        (METHOD, {"inputs": (TENSOR, ScalarSpec("double", 3.0))}, "input 1 is double instead of int"),
        (METHOD, {"outputs": (replace(TENSOR, dim_order=(1, 0)),)}, REORDERED),
        (METHOD, {"inputs": (TENSOR, ScalarSpec("int", 4))}, None),
        (CONSTANT, {}, None),
    ],
)
def test_differences(method, changes, difference):
    """Merging and calling compare everything but the values that numbers were traced with; NaN equals itself."""
    other = replace(method, **changes)
    assert signature_mismatch(method, other) == call_mismatch(method, other) == difference


@pytest.mark.parametrize(
    ("method", "output", "difference"),
    [
        (METHOD, replace(TENSOR, shape=(3, 3)), "float32 up to [3, 3] instead of float32 up to [2, 3]"),
        (METHOD, replace(TENSOR, dynamism="static"), "float32 [2, 3] instead of float32 up to [2, 3]"),
        (
            METHOD,
            replace(TENSOR, dynamism="unbound"),
            "float32 of 2 dimensions of any size instead of float32",
        ),
        (CONSTANT, ScalarSpec("double", 2.5), "2.5 instead of nan"),
    ],
)
def test_different_sizes_and_constants(method, output, difference):
    """Merging compares sizes and what constant methods return; calling leaves them to the call."""
    other = replace(method, outputs=(output,))
    assert signature_mismatch(method, other).startswith(f"output 0 is {difference}")
    assert call_mismatch(method, other) is None
