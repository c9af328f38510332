"""Models for the benchmarks of fat files: their payloads by ExecuTorch's own API, packed by pteforge."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BACKENDS = {"vulkan": ("VulkanBackend",), "xnnpack": ("XnnpackBackend",), "portable": ()}
"""What payloads need, by preference."""


@dataclass(frozen=True)
class FatModel:
    """A fat file and the payload of it that runs here.

    Attributes:
        model: its name.
        payload: name of the payload.
        file: the fat file.
        bare: the payload as a file of its own.
        inputs: what nfat_run takes as inputs.
    """

    model: str
    payload: str
    file: Path
    bare: Path
    inputs: tuple[str, ...]


def weights(folder: Path) -> Iterator[FatModel]:
    """A model with 21 MB of linear weights, for Vulkan, XNNPACK and portable; then without XNNPACK."""
    import torch

    layers = [layer for _ in range(5) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    payloads = lower(torch.nn.Sequential(*layers).eval(), torch.randn(1, 1024), tuple(BACKENDS))
    yield pack("21 MB", "xnnpack", payloads, (1, 1024), folder)
    without = {name: payloads[name] for name in ("vulkan", "portable")}
    yield pack("21 MB", "portable", without, (1, 1024), folder)


def small(folder: Path) -> Iterator[FatModel]:
    """A model that computes next to nothing, so that a call is what calling costs."""
    import torch

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    payloads = lower(Twice(), torch.ones(1), ("xnnpack", "portable"))
    yield pack("x + x", "xnnpack", payloads, (1,), folder)
    yield pack("x + x", "portable", {"portable": payloads["portable"]}, (1,), folder)


def lower(module: Any, example: Any, names: tuple[str, ...]) -> dict[str, bytes]:
    """A `.pte` for each backend."""
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from torch.export import export

    program = export(module, (example,))
    partitioners = {"vulkan": [VulkanPartitioner()], "xnnpack": [XnnpackPartitioner()], "portable": None}
    return {
        name: bytes(
            to_edge_transform_and_lower(copy.deepcopy(program), partitioner=partitioners[name]).to_executorch().buffer
        )
        for name in names
    }


def pack(model: str, payload: str, payloads: Mapping[str, bytes], shape: tuple[int, ...], folder: Path) -> FatModel:
    """Writes the fat file, the bare payload and an input of ones."""
    from pteforge.artifacts.nfat.contents import Description
    from pteforge.artifacts.nfat.pack import pack_v2
    from pteforge.tasks.stages.outer import write_fat

    packed = pack_v2([(Description(name, BACKENDS[name], ("forward",)), content) for name, content in payloads.items()])
    stem = f"{model.replace(' ', '-')}-{payload}"
    fat, bare, ones = (folder / f"{stem}.{kind}" for kind in ("pte", "bare.pte", "bin"))
    write_fat(packed, payloads[payload], fat)
    bare.write_bytes(payloads[payload])
    size = 1
    for each in shape:
        size *= each
    ones.write_bytes(b"\x00\x00\x80\x3f" * size)
    return FatModel(model, payload, fat, bare, (f"{'x'.join(map(str, shape))}:{ones}",))
