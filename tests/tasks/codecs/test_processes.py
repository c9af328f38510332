"""Digests and streams mean the same in every process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pteforge.artifacts.local_store import LocalStore
from pteforge.artifacts.ref import ArtifactRef
from pteforge.tasks.codecs.canonical import program_digest
from pteforge.tasks.codecs.program import load_program

NETWORKS = Path(__file__).parents[2] / "zoo" / "networks.py"

SAVE = """
import json, sys
from pathlib import Path
import torch
from executorch.exir import to_edge
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from pteforge.artifacts.local_store import LocalStore
from pteforge.tasks.codecs.program import save_program
from {module} import ConvNet

store = LocalStore.open(Path(sys.argv[1]))
torch.manual_seed(0)
net = ConvNet().eval()
inputs = (torch.ones(3, 3, 8, 8),)
shapes = ({{0: torch.export.Dim("batch", min=2, max=8)}},)
aten = torch.export.export(net, inputs, dynamic_shapes=shapes)
prepared = prepare_pt2e(
    torch.export.export(net, inputs).module(),
    XNNPACKQuantizer().set_global(get_symmetric_quantization_config()),
)
prepared(*inputs)
quantized = torch.export.export(convert_pt2e(prepared), inputs)
programs = aten, quantized, to_edge(aten).exported_program()
print(json.dumps([save_program(program, kind="program/any", store=store).to_json() for program in programs]))
"""


def run(script: str, *arguments: str, folder: Path, seed: str) -> str:
    """Last line that a script prints, in a process with its own hash seed and folder."""
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_same_in_every_process(store: LocalStore, tmp_path: Path):
    """A model moved to another folder and module, with a comment added, under another hash seed: the same identities.

    What they saved, this process loads without the model's module, and gives the same digests.
    """
    made = []
    for seed, module, comment in (("1", "first", ""), ("2", "second", "# more lines\n\n")):
        folder = tmp_path / module
        folder.mkdir()
        (folder / f"{module}.py").write_text(comment + NETWORKS.read_text())
        printed = run(SAVE.format(module=module), str(store.root), folder=folder, seed=seed)
        made.append([ArtifactRef.from_json(ref) for ref in json.loads(printed)])
    assert [ref.identity for ref in made[0]] == [ref.identity for ref in made[1]]
    assert len({ref.identity for ref in made[0]}) == 3
    one, other = ([program_digest(load_program(ref, store)) for ref in refs] for refs in made)
    assert one == other
