"""Functions that the tests run in processes forked from the real warm server, and once without it."""

import hashlib
import json
import sys
from pathlib import Path

import pteforge
import torch
from pteforge.tests.zoo.networks import ConvNet, Function

INPUT = torch.linspace(-1, 1, 3 * 8 * 8).reshape(1, 3, 8, 8)


def lower(path):
    """Lowers the network to a file; returns its digest."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    torch.manual_seed(0)
    # Some of everything: delegated to XNNPACK for the most part, the rest portable.
    net = torch.nn.Sequential(ConvNet(), Function(lambda x: torch.cumsum(x, 1))).eval()
    with torch.no_grad():
        program = torch.export.export(net, (INPUT,))
        content = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch().buffer
        Path(path).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def sum_of_mapped(path):
    """Reads a file of floats that is mapped, not read."""
    return float(torch.from_file(path, shared=True, size=Path(path).stat().st_size // 4).sum())


def environment(_argument):
    """Torch's threads, and the loaded modules that no stage needs."""
    needless = {"prefect", "typer", "rich"}
    return [torch.get_num_threads(), sorted(name for name in sys.modules if name.partition(".")[0] in needless)]


def installed_modules(_argument):
    """Top-level modules of other packages than Python that are loaded once a model was lowered."""
    packages = [Path(torch.__file__).parents[1], Path(pteforge.__file__).parents[1]]
    tops = {name for name in sys.modules if "." not in name and not name.startswith("_")} - sys.stdlib_module_names
    found = {name: getattr(sys.modules[name], "__file__", None) for name in tops}
    return sorted(name for name, path in found.items() if path and any(map(Path(path).is_relative_to, packages)))


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])))  # noqa: T201 - the answer
