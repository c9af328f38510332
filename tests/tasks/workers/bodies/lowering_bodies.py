"""Functions that the tests run in processes forked from the real warm server, and once without it."""

# ruff: noqa: D102, D103 - named after what they do

import hashlib
import json
import sys
from pathlib import Path

import torch


class Net(torch.nn.Module):
    """Some of everything: delegated to XNNPACK for the most part, the rest portable."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.cumsum(self.linear(torch.relu(self.norm(self.convolution(x))).mean((2, 3))), 1)


INPUT = torch.linspace(-1, 1, 3 * 8 * 8).reshape(1, 3, 8, 8)


def lower(path):
    """Gives the digest of the file."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    torch.manual_seed(0)
    net = Net().eval()
    with torch.no_grad():
        program = torch.export.export(net, (INPUT,))
        content = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch().buffer
        Path(path).write_bytes(content)
        torch.save(net(INPUT), f"{path}.expected")
    return hashlib.sha256(content).hexdigest()


def largest_error(path):
    """Runs the file, a delegate of XNNPACK in it, three times."""
    from executorch.runtime import Runtime, Verification

    method = Runtime.get().load_program(path, verification=Verification.InternalConsistency).load_method("forward")
    expected = torch.load(f"{path}.expected", mmap=True)
    return max(float((method.execute([INPUT])[0] - expected).abs().max()) for _ in range(3))


def sum_of_mapped(path):
    """Reads a file of floats that is mapped, not read."""
    return float(torch.from_file(path, shared=True, size=Path(path).stat().st_size // 4).sum())


def torch_threads(_argument):
    return torch.get_num_threads()


def loaded_modules(_argument):
    return sorted(name for name in sys.modules if name.partition(".")[0] in ("prefect", "typer", "rich"))


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])))  # noqa: T201 - the answer
