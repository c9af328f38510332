"""Files that torch and safetensors map without an audit event."""

import pytest
import torch
from pteforge.tasks.upstream.mapped_files import mapping_heard
from safetensors.torch import load_file, save_file


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_mapped_files_are_heard(tmp_path, name):
    """Each file is heard by its path while the context lasts, and loaded as ever."""
    path, weights, heard = tmp_path / name, {"x": torch.arange(3)}, []
    if name.endswith(".pt"):
        torch.save(weights, path)
    else:
        save_file(weights, path)
    with mapping_heard(heard.append):
        loaded = torch.load(path, mmap=True) if name.endswith(".pt") else load_file(path)
    assert torch.equal(loaded["x"], weights["x"])
    assert {str(heard_path) for heard_path in heard} == {str(path)}
    before = len(heard)
    torch.load(path, mmap=True) if name.endswith(".pt") else load_file(path)
    assert len(heard) == before
