"""`pteforge merge`: fat files of plain ones that were made elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pteforge.artifacts.nfat.fat_file import open_fat
from pteforge.artifacts.pte.contents import InstructionCounts, Method, ScalarSpec, TensorSpec
from pteforge.runtime import load
from pteforge.runtime.signature import call_mismatch, signature_mismatch


def test_merge(pteforge, payloads, tmp_path, inputs, plainly):
    """The payloads are the files, in the order given, called as the files are or as is said; what runs is a payload."""
    said = pteforge("merge", payloads["vulkan"], f"cpu={payloads['xnnpack']}", payloads["portable"], "-o", "fat.pte")
    assert (said.code, said.err) == (0, "")
    assert "payloads vulkan, cpu, portable; alone they have" in said.out
    container = open_fat(tmp_path / "fat.pte").container
    files = {"vulkan": payloads["vulkan"], "cpu": payloads["xnnpack"], "portable": payloads["portable"]}
    assert [payload.name for payload in container.payloads] == list(files)
    for payload in container.payloads:
        assert container.rebuild(payload) == files[payload.name].read_bytes()
        assert payload.description.methods == ("forward", "hidden", "rate", "label")
    assert [payload.description.backends for payload in container.payloads] == [
        ("VulkanBackend",),
        ("XnnpackBackend",),
        (),
    ]
    for exclude, name in (([], "xnnpack"), (["cpu"], "portable")):
        program = load(tmp_path / "fat.pte", exclude=exclude)
        for method in ("forward", "hidden"):
            (found,) = program.run(method, [inputs(6)])
            (expected,) = plainly(payloads[name], method, [inputs(6)])
            assert found.equal(expected)
        assert program.run("rate") == [16000]


def test_merge_as_json(pteforge, payloads, tmp_path):
    """Machines get names and sizes; weights may go to another file."""
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
    """Equal files give equal bytes, wherever they are; an output that is an input is replaced when it is whole."""
    pteforge("merge", payloads["xnnpack"], payloads["portable"], "-o", "first.pte")
    for name in ("xnnpack", "portable"):
        shutil.copy(payloads[name], tmp_path)
    assert pteforge("merge", "xnnpack.pte", "portable.pte", "-o", "portable.pte").code == 0
    assert (tmp_path / "portable.pte").read_bytes() == (tmp_path / "first.pte").read_bytes()


def test_names(pteforge, payloads, tmp_path):
    """Two payloads of one name, and names that the format has no room for, are refused with what to do."""
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


def test_fallback(pteforge, payloads, tmp_path):
    """The last payload has to run everywhere; one that needs a backend is named with it."""
    said = pteforge("merge", payloads["portable"], payloads["xnnpack"], "-o", "fat.pte")
    said.refused("xnnpack.pte is the last payload and needs XnnpackBackend", "portable")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_payloads(pteforge, fat, payloads, tmp_path):
    """Fat files, other files and missing ones are refused by name."""
    (tmp_path / "text.pte").write_text("not a program")
    portable = payloads["portable"]
    pteforge("merge", fat, portable, "-o", "out.pte").refused("model.pte is a fat file itself", "extract")
    pteforge("merge", "text.pte", portable, "-o", "out.pte").refused("text.pte: not a .pte")
    pteforge("merge", "nowhere.pte", portable, "-o", "out.pte").refused("nowhere.pte: cannot be read")
    pteforge("merge", "x=nowhere.pte", portable, "-o", "out.pte").refused("nowhere.pte: cannot be read")
    assert not (tmp_path / "out.pte").exists()


@pytest.fixture(scope="module")
def lowered(tmp_path_factory) -> Callable[..., Path]:
    """Lowers one module for the portable kernels."""
    import torch
    from executorch.exir import to_edge_transform_and_lower
    from torch.export import export

    folder = tmp_path_factory.mktemp("lowered")

    def lower(name: str, shape: tuple[int, ...], module=torch.nn.ReLU, method="forward") -> Path:
        program = export(module(), (torch.ones(shape),))
        path = folder / f"{name}.pte"
        path.write_bytes(to_edge_transform_and_lower({method: program}).to_executorch().buffer)
        return path

    return lower


def test_signatures(pteforge, lowered, tmp_path):
    """Payloads have the same methods with the same arguments; else file, method and argument are named."""
    import torch

    last = lowered("last", (2, 3))
    flat = lowered("flat", (2, 3), lambda: torch.nn.Flatten(0))
    wrong = {
        lowered("longer", (2, 4)): "method 'forward': input 0 is float32 [2, 4] instead of float32 [2, 3], as in ",
        flat: "method 'forward': output 0 is float32 [6] instead of float32 [2, 3], as in ",
        lowered("decode", (2, 3), method="decode"): "has no method 'forward', which ",
    }
    for path, telling in wrong.items():
        pteforge("merge", path, last, "-o", "fat.pte").refused(str(path), telling, str(last))
    assert not (tmp_path / "fat.pte").exists()


def test_more_methods(pteforge, lowered, payloads):
    """A method that only one file has is told from the side that has it."""
    other = lowered("other", (2, 3), method="encode")
    said = pteforge("merge", payloads["xnnpack"], other, "-o", "fat.pte")
    said.refused("xnnpack.pte has no method 'encode', which ", "other.pte has")


TENSOR = TensorSpec("float32", (2, 3), (0, 1), "bound", 24)
METHOD = Method("forward", (TENSOR, ScalarSpec("int", 3)), (TENSOR,), (), (), (), (), InstructionCounts(kernel_calls=1))
CONSTANT = Method("rate", (), (ScalarSpec("double", float("nan")),), (), (), (), (), InstructionCounts())


@pytest.mark.parametrize(
    ("other", "merge", "call"),
    [
        (replace(METHOD, inputs=(TENSOR, ScalarSpec("int", 4))), None, None),
        (replace(METHOD, inputs=(TENSOR,)), "it has 1 input instead of 2", "it has 1 input instead of 2"),
        (replace(METHOD, outputs=()), "it has 0 outputs instead of 1", "it has 0 outputs instead of 1"),
        (
            replace(METHOD, inputs=(TENSOR, ScalarSpec("double", 3.0))),
            "input 1 is double instead of int",
            "input 1 is double instead of int",
        ),
        (
            replace(METHOD, outputs=(replace(TENSOR, shape=(3, 3)),)),
            "output 0 is float32 up to [3, 3] instead of float32 up to [2, 3]",
            None,
        ),
        (
            replace(METHOD, outputs=(replace(TENSOR, dynamism="static"),)),
            "output 0 is float32 [2, 3] instead of float32 up to [2, 3]",
            None,
        ),
        (
            replace(METHOD, outputs=(replace(TENSOR, dim_order=(1, 0)),)),
            "output 0 is float32 up to [2, 3] in dimension order [1, 0] instead of float32 up to [2, 3]",
            "output 0 is float32 up to [2, 3] in dimension order [1, 0] instead of float32 up to [2, 3]",
        ),
        (
            replace(METHOD, outputs=(replace(TENSOR, dynamism="unbound"),)),
            "output 0 is float32 of 2 dimensions of any size instead of float32 up to [2, 3]",
            None,
        ),
    ],
)
def test_differences(other, merge, call):
    """Merging compares everything but the values that numbers were traced with; calling leaves sizes to the call."""
    assert signature_mismatch(METHOD, other) == merge
    assert call_mismatch(METHOD, other) == call


def test_constants():
    """Constant methods have to return the same, and not-a-number is the same as itself."""
    assert signature_mismatch(CONSTANT, CONSTANT) is None
    other = replace(CONSTANT, outputs=(ScalarSpec("double", 2.5),))
    assert signature_mismatch(CONSTANT, other) == "output 0 is 2.5 instead of nan"
    assert call_mismatch(CONSTANT, other) is None
