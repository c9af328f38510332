"""The mistakes of a first hour, in the order of the table in docs/how-to/first-hour.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pteforge
import pytest
import torch
import yaml
from pteforge.configs.load import load_zoo
from pteforge.errors import PteforgeError
from pteforge.tasks.engine.keys.builder import find_builder
from pteforge.tasks.engine.keys.search import ModuleSearch
from pteforge.tasks.usercode.model_source import build
from torch import nn

BUILDERS = """
import torch
from pteforge.configs.model import MethodDefinition, ModelDefinition

def bare():
    return torch.nn.Linear(4, 4)

def pair():
    return torch.nn.Linear(4, 4), torch.ones(1, 4)

def nothing():
    torch.nn.Linear(4, 4), (torch.ones(1, 4),)

def checkpoint():
    return torch.load("weights.pth")

def exits():
    raise SystemExit(1)

def weights():
    return torch.nn.Linear(4, 4).state_dict(), (torch.ones(1, 4),)

def vision():
    raise RuntimeError("operator torchvision::nms does not exist")

def cuda():
    raise RuntimeError("Found no NVIDIA driver on your system.")

def arrays():
    return torch.nn.Linear(4, 4), (torch.ones(1, 4).numpy(),)

def defined(inputs):
    method = MethodDefinition(torch.nn.Linear(4, 4), inputs)
    return ModelDefinition({"forward": method})

def empty():
    return defined([])

def missing():
    return defined(None)

def elsewhere():
    return torch.nn.Linear(4, 4, device="meta"), (torch.ones(1, 4),)

def too_many():
    return torch.nn.Linear(4, 4), (torch.ones(1, 4), torch.ones(1, 4))

class Text(torch.nn.Module):
    def forward(self, x):
        return x + 1, "label"

def text():
    return Text(), (torch.ones(1, 4),)

"""
ZOOS = {
    "tab": "version: 1\nmodels:\n\tnet: {source: 'mistakes:bare'}\n",
    "open": "version: 1\nmodels:\n  net: {source: 'mistakes:bare'\n  other: 1\n",
    "colon": "version: 1\nmodels:\n  net: a text: with a colon\n",
    "unknown": "version: 1\nmodels:\n  net: {sourse: 'mistakes:bare', recipes: [portable-fp32]}\n",
}
PATHS = ("weights.pt", "net.py", "net", "net.py:build")
CALLS = {
    "arrays": {"example_inputs": (np.ones((1, 4), "float32"),)},
    "tensor": {"example_inputs": torch.ones(1, 4)},
    "empty": {"example_inputs": []},
    "missing": {"example_inputs": None},
    "named": {"example_inputs": {"input": torch.ones(1, 4)}},
    "class": {"model": nn.Linear},
    "state": {"model": nn.Linear(4, 4).state_dict()},
    "by_name": {"model": "mistakes:bare"},
    "like_onnx": {"dynamic_shapes": {0: "batch"}},
    "elsewhere": {"model": nn.Linear(4, 4, device="meta")},
    "too_many": {"example_inputs": (torch.ones(1, 4), torch.ones(1, 4))},
    "recipe": {"recipe": "xnnpack-fp23"},
    "until": {"until": "to_edge"},
    "calibration": {"calibration": [(torch.ones(1, 4),)]},
}


class Text(nn.Module):
    """Returns a label, too."""

    def forward(self, x):
        return x + 1, "label"


CALLS["text"] = {"model": Text()}
TABLE = Path(pteforge.__file__).parent / "docs" / "how-to" / "first-hour.md"
MESSAGES = {
    "arrays": "give tensors: `torch.from_numpy(...)`",
    "tensor": "give a tuple of positional arguments, such as (x,)",
    "empty": "is an empty list",
    "missing": "they are what it is traced with",
    "named": "arguments by name are `example_kwarg_inputs`",
    "class": "give an nn.Module",
    "state": "build the module, `model.load_state_dict(...)`",
    "by_name": "is a builder's name, which the command line and zoos take",
    "like_onnx": "a size that varies is a `torch.export.Dim` with bounds",
    "elsewhere": "models are lowered on the CPU",
    "text": "returns a text as output 1",
    "too_many": "does not take its own example inputs",
    "recipe": "did you mean 'xnnpack-fp32'",
    "until": "did you mean 'edge'",
    "calibration": "has no `quantize`; leave one of them out",
    "bare": "without example inputs",
    "pair": "example inputs are a tuple of arguments",
    "nothing": "let it end with `return model, (x,)`",
    "weights": "a state dict, which has weights and no code",
    "exits": "must not end the process",
    "checkpoint": "relative paths begin in the folder of the zoo file",
    "cuda": "models are lowered on the CPU",
    "vision": "install the one for CPUs",
    "weights.pt": "no zoo file (YAML), since it is no text",
    "net.py": "name a function that returns the model and its example inputs",
    "net": "net.py is Python code",
    "net.py:build": "write module:function, without `.py`",
    "tab": "indent with spaces",
    "open": "is not closed with `}`",
    "colon": "in quotes",
    "unknown": "did you mean 'source'",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name, tmp_path, monkeypatch):
    """Each mistake is an error of ours whose message has what the table says."""
    (tmp_path / "mistakes.py").write_text(BUILDERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo.yaml").write_text(ZOOS.get(name, ""))
    with pytest.raises(PteforgeError, match=re.escape(MESSAGES[name])):
        _make(name, tmp_path)


def _make(name, folder):
    if name in CALLS:
        call = {"model": nn.Linear(4, 4), "example_inputs": (torch.ones(1, 4),), "recipe": "portable-fp32"}
        return pteforge.export(**(call | CALLS[name]), store=folder / "store")
    if name in PATHS:
        torch.save(nn.Linear(4, 4).state_dict(), "weights.pt")
        Path("net.py").write_text("import torch")
        if ":" in name:
            return find_builder(name, ModuleSearch((folder,)))
        return load_zoo(Path(name))
    return load_zoo(folder / "zoo.yaml") if name in ZOOS else build(f"mistakes:{name}", {})


@pytest.mark.parametrize("sizes", [([-1, 4],), ({0: -1},), {"input": {0: {"min": 1, "max": 8}}}])
def test_sizes_as_other_tools_write_them(sizes, tmp_path):
    """-1 and mappings of bounds are refused as names are, with what torch.export takes."""
    with pytest.raises(PteforgeError, match=re.escape(MESSAGES["like_onnx"])):
        pteforge.export(
            nn.Linear(4, 4), (torch.ones(1, 4),), recipe="portable-fp32", dynamic_shapes=sizes, store=tmp_path
        )


@pytest.mark.slow
def test_builders_on_the_command_line(tmp_path):
    """Each mistake that a builder can make fails at `export` with the message that the API has."""
    (tmp_path / "mistakes.py").write_text(BUILDERS)
    names = [name for name in MESSAGES if f"def {name}()" in BUILDERS]
    assert len(names) == 14
    models = {name: {"source": f"mistakes:{name}", "recipes": ["portable-fp32"]} for name in names}
    (tmp_path / "zoo.yaml").write_text(yaml.safe_dump({"version": 1, "models": models}))
    command = [Path(sys.executable).with_name("pteforge"), "export", "zoo.yaml", "--json", "--store", "store"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 1, done.stderr  # two of them raise exceptions of their own
    failures = json.loads(done.stdout)["models"]
    for name in names:
        assert MESSAGES[name] in failures[name]["portable-fp32"]["problem"], name


def test_the_table_has_them_all():
    """The table in the documentation has these messages, in this order."""
    rows = re.findall(r"^\| (?!mistake|-)[^|]+ \| ([^|]+) \|$", TABLE.read_text(), re.MULTILINE)
    assert rows == list(MESSAGES.values())
    assert len(rows) == 31
