"""Small real `.pte` files of one model, lowered once per session, and what they give when packed."""

from __future__ import annotations

import warnings

import pytest
from pteforge.artifacts.nfat.contents import Description
from pteforge.artifacts.nfat.pack import PackedContainer, pack_v2

_BACKENDS = {"xnnpack": ("XnnpackBackend",), "portable": ()}


@pytest.fixture(scope="session")
def payloads() -> list[tuple[Description, bytes]]:
    """A net with a convolution and linear layers, for XNNPACK and portable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # upstream's, while it lowers; nothing here is about them
        files = _lower()
    return [
        (Description(name, _BACKENDS[name], ("forward",), "1.5.1", {"quantization": "none"}), content)
        for name, content in files.items()
    ]


@pytest.fixture(scope="session")
def packed(payloads) -> PackedContainer:
    """The payloads in one container."""
    return pack_v2(payloads, metadata={"made-by": "pteforge"})


def _lower() -> dict[str, bytes]:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from torch.export import export

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(8, 16, 3)
            self.linear = torch.nn.Sequential(torch.nn.Linear(16 * 36, 128), torch.nn.ReLU(), torch.nn.Linear(128, 256))

        def forward(self, x):
            return self.linear(torch.relu(self.conv(x)).flatten(1))

    torch.manual_seed(0)
    program = export(Net().eval(), (torch.randn(1, 8, 8, 8),))
    partitioners = {"xnnpack": [XnnpackPartitioner()], "portable": None}
    return {
        name: bytes(to_edge_transform_and_lower(program, partitioner=partitioner).to_executorch().buffer)
        for name, partitioner in partitioners.items()
    }
