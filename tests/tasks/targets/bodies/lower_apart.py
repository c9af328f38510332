"""Lowers networks for a target by ExecuTorch's public call, in a process of its own; writes files.

Arguments: folder, target, and any number of lowerings, each as JSON: name of the file, network, options.
"""

import json
import os
import sys
from pathlib import Path

import torch
from executorch.exir import to_edge_transform_and_lower
from pteforge.tasks.targets import find_target
from pteforge.tests.zoo.networks import Cache, Function, WriteAndRead
from torch import nn

NETWORKS = {
    "mlp": lambda: (nn.Sequential(nn.Linear(64, 512), nn.ReLU()), (torch.randn(1, 64),)),
    "uncommon": lambda: (Function(lambda x: torch.asinh(x) + 1), (torch.ones(2),)),
    "circular": lambda: (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (torch.randn(1, 3, 8, 8),)),
    "counter": lambda: (WriteAndRead(Cache()), (torch.ones(2, 4),)),
}


def main(folder: Path, target: str, lowerings: list[dict[str, object]]) -> None:
    """A lowering that fails gives a file with the error's type and message."""
    for lowering in lowerings:
        torch.manual_seed(0)
        module, inputs = NETWORKS[lowering["network"]]()
        partitioners = list(find_target(target, lowering["options"]).partitioners())
        program = torch.export.export(module.eval(), inputs)
        path = folder / lowering["file"]
        try:
            edge = to_edge_transform_and_lower(program, partitioner=partitioners)
            path.with_suffix(".pte").write_bytes(edge.to_executorch().buffer)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            path.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [json.loads(lowering) for lowering in sys.argv[3:]])
    sys.stdout.flush()
    os._exit(0)  # as stage processes do
