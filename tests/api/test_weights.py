"""load_weights: modules get mapped tensors of checkpoints, and clear errors where these do not fit."""

import json
from pathlib import Path

import pteforge
import pytest
import torch
from pteforge.errors import SourceError
from pteforge.tasks.export.eager import run_eager
from pteforge.tasks.programs import weights
from pteforge.tasks.usercode.model_source import build
from safetensors.torch import save_file
from torch import nn


class Net(nn.Module):
    """A table that is the head, too, and a layer between them."""

    def __init__(self, *, buffer=False):
        super().__init__()
        self.table = nn.Embedding(300, 64)
        self.layer = nn.Linear(64, 64)
        self.head = nn.Linear(64, 300, bias=False)
        self.head.weight = self.table.weight
        if buffer:
            self.register_buffer("scale", torch.ones(64), persistent=False)

    def forward(self, tokens):
        return self.head(self.layer(self.table(tokens)))


def on_meta(**options):
    with torch.device("meta"):
        return Net(**options)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().to(torch.bfloat16)


def stored(net):
    return {name: value for name, value in net.state_dict().items() if name != "head.weight"}


def test_weights_are_mapped_and_tied(net, tmp_path):
    """The module computes the same, in the checkpoint's dtype; one parameter stays one; pages belong to the file."""
    file = tmp_path / "model.safetensors"
    save_file(stored(net), file)
    loaded = on_meta()
    pteforge.load_weights(loaded, file)
    tokens = torch.arange(20)[None]
    assert torch.equal(loaded(tokens), net(tokens))
    assert loaded.head.weight is loaded.table.weight
    maps = [row.split() for row in Path("/proc/self/maps").read_text().splitlines() if row.endswith(str(file))]
    places = [tuple(int(end, 16) for end in row[0].split("-")) for row in maps]
    assert any(start <= loaded.layer.weight.data_ptr() < end for start, end in places)


def test_checkpoints_in_parts(net, tmp_path):
    """An index leads to the tensors of several files."""
    parts = {name: f"model-{number}.safetensors" for number, name in enumerate(stored(net))}
    for name, file in parts.items():
        save_file({name: stored(net)[name]}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": parts}))
    loaded = on_meta()
    pteforge.load_weights(loaded, str(index))
    assert torch.equal(loaded.layer.weight, net.layer.weight)


def test_what_does_not_fit(net, tmp_path):
    """Missing and damaged files, other names and shapes, and buffers without values are told by name."""
    file = tmp_path / "model.safetensors"
    save_file({**stored(net), "layer.bias": torch.zeros(3)}, file)
    with pytest.raises(SourceError, match=r"(?s)does not fit Net.*layer\.bias"):
        pteforge.load_weights(on_meta(), file)
    save_file({"layer.bias": torch.zeros(64)}, file)
    with pytest.raises(SourceError, match=r"table\.weight"):
        pteforge.load_weights(on_meta(), file)
    save_file(stored(net), file)
    with pytest.raises(SourceError, match="values for scale of Net"):
        pteforge.load_weights(on_meta(buffer=True), file)
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(SourceError, match="can be read"):
        pteforge.load_weights(on_meta(), file)
    with pytest.raises(SourceError, match="can be read"):
        pteforge.load_weights(on_meta(), tmp_path / "none.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(SourceError, match="can be read"):
        pteforge.load_weights(on_meta(), tmp_path / "model.safetensors.index.json")


def mapped(file):
    """A builder that computes in float32, and reads its weights itself."""
    model = on_meta()
    pteforge.load_weights(model, file, dtype=torch.float32)
    model.layer.bias.data = model.head.weight.sum(0)
    return model.eval(), (torch.arange(20)[None],)


def test_casts_of_a_builder_stay_in_the_file(net, tmp_path, monkeypatch):
    """Elsewhere they are made at once."""
    monkeypatch.setattr(weights, "_LEAST_CAST", 1)
    file = tmp_path / "model.safetensors"
    save_file(stored(net), file)
    net = net.float()
    net.layer.bias.data = net.head.weight.data.sum(0)
    method = build("pteforge.tests.api.test_weights:mapped", {"file": str(file)}).definition.methods["forward"]
    assert weights.cast_of(method.module.head.weight) is not None
    (found,) = run_eager(method.module, (method.example_inputs[0], {}), "")
    assert torch.equal(found, net(*method.example_inputs[0]))
    loaded = on_meta()
    pteforge.load_weights(loaded, file, dtype=torch.float32)
    assert weights.cast_of(loaded.layer.weight) is None
    assert torch.equal(loaded.layer.weight, net.layer.weight)
