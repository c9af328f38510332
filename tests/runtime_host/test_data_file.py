"""Plain files with external weights in a `.ptd`: loading them, and errors if the two files do not match."""

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pteforge.errors import FileFormatError, InputError
from pteforge.runtime import load


@dataclass(frozen=True)
class Pair:
    """Two files that belong together, and what the model gives for `inputs`."""

    file: Path
    data: Path
    inputs: list[Any]
    expected: Any

    def copy(self, folder: Path) -> Path:
        """Copies of both, with one name; gives the `.pte`."""
        shutil.copy(self.data, folder / "model.ptd")
        return Path(shutil.copy(self.file, folder / "model.pte"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Mapping[str, Pair]:
    """What ExecuTorch makes by itself of two models, for its kernels and for XNNPACK; `wide` ones have other sizes."""
    folder = tmp_path_factory.mktemp("pairs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # upstream's, while it lowers; nothing here is about them
        return {
            f"{size}{name}": _pair(folder / f"{size}{name}", width, delegate=name == "xnnpack")
            for name in ("portable", "xnnpack")
            for size, width in (("", 8), ("wide ", 16))
        }


def _pair(folder: Path, width: int, *, delegate: bool) -> Pair:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower

    torch.manual_seed(width)
    model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 3)).eval()
    inputs = (torch.randn(2, 4),)
    program = torch.export.export(model, inputs)
    manager = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()] if delegate else None)
    if delegate:
        manager._named_data_store.externalize_pte_data(max_data_bytes=1 << 20, tag_prefix="weights")
    emitted = manager.to_executorch(ExecutorchBackendConfig(external_constants=True))
    folder.mkdir()
    emitted.save(str(folder / "model.pte"))
    emitted.write_tensor_data_to_file(str(folder))
    (data,) = folder.glob("*.ptd")
    return Pair(folder / "model.pte", data, list(inputs), model(*inputs).detach())


@pytest.mark.parametrize("name", ["portable", "xnnpack"])
def test_both_run(name, pairs, pteforge, tmp_path):
    """The two files run together; the command line takes the `.ptd` of the same name, or the one that is named."""
    pair = pairs[name]
    (output,) = load(pair.file, data_files=[pair.data]).run("forward", pair.inputs)
    assert output.numpy() == pytest.approx(pair.expected.numpy(), abs=1e-5)
    file = pair.copy(tmp_path)
    found = pteforge("run", file, "--json").json["outputs"]
    (tmp_path / "model.ptd").rename(tmp_path / "elsewhere.ptd")
    assert pteforge("run", file, "--data", "elsewhere.ptd", "--json").json["outputs"] == found


@pytest.mark.parametrize("name", ["portable", "xnnpack"])
def test_without_its_data(name, pairs, pteforge, payloads, tmp_path):
    """A file with external weights is not loaded without them, whether kernels or XNNPACK use them."""
    with pytest.raises(InputError, match=r"keeps 4 weights .*\.ptd file \('.*\), .*as model\.ptd"):
        load(pairs[name].file)
    alone = shutil.copy(pairs[name].file, tmp_path / "alone.pte")
    pteforge("run", alone).refused("alone.pte keeps 4 weights in a .ptd file", "as alone.ptd")
    whole = pairs[name].copy(tmp_path)
    pteforge("merge", whole, payloads["portable"], "-o", "fat.pte").refused("keeps weights in a .ptd file")


def test_with_anothers_data(pairs, pteforge, payloads, tmp_path):
    """Data of another file is refused, naming the first weight that does not fit."""
    file = pairs["xnnpack"].copy(tmp_path)
    shutil.copy(payloads["xnnpack"], file)
    assert pteforge("run", file, "--json").code == 0
    with pytest.raises(InputError, match=r"not belong to .*'0\.bias' has 64 bytes, .*32"):
        load(pairs["portable"].file, data_files=[pairs["wide portable"].data])
    with pytest.raises(InputError, match=r"not belong to .*has no '0\.bias'"):
        load(pairs["portable"].file, data_files=[pairs["xnnpack"].data])
    with pytest.raises(InputError, match=r"not belong to .*has no '[0-9a-f]{64}'"):
        load(pairs["xnnpack"].file, data_files=[pairs["wide xnnpack"].data])


def test_damaged_data(pairs, tmp_path):
    """Data that is cut short, not a `.ptd` or missing is an error that names it."""
    file = pairs["portable"].copy(tmp_path)
    for content, problem in ((b"not it", "not a .ptd file"), (pairs["portable"].data.read_bytes()[:-100], "cut short")):
        (tmp_path / "model.ptd").write_bytes(content)
        with pytest.raises(FileFormatError, match=rf"model\.ptd: .*{problem}"):
            load(file, data_files=[tmp_path / "model.ptd"])
    with pytest.raises(InputError, match=r"gone\.ptd: cannot be read"):
        load(file, data_files=[tmp_path / "gone.ptd"])


@pytest.mark.parametrize("name", ["portable", "xnnpack"])
def test_inspect(name, pairs, pteforge, tmp_path):
    """External weights are counted, also without the `.ptd`; sizes of a delegate's weights are only in it."""
    pair = pairs[name]
    file = pair.copy(tmp_path)
    stored = {"count": 4, "bytes": 4 * (4 * 8 + 8 + 8 * 3 + 3)}
    assert pteforge("inspect", file, "--json").json["outside"] == stored
    assert "external, in a .ptd file: 4 weights, 268 B" in pteforge("inspect", file).out
    (tmp_path / "model.ptd").unlink()
    alone = stored if name == "portable" else {"count": 4, "bytes": None}
    assert pteforge("inspect", file, "--json").json["outside"] == alone
    assert "external, in a .ptd file: 4 weights" in pteforge("inspect", file).out
