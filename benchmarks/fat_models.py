"""Models for the benchmarks of fat files: lowered with ExecuTorch's own API, packed with pteforge."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BACKENDS = {"vulkan": ("VulkanBackend",), "xnnpack": ("XnnpackBackend",), "portable": ()}
"""Payload name to the backend ids it needs, in order of preference."""


@dataclass(frozen=True)
class FatModel:
    """A fat file, and its payload that runs on this machine.

    Attributes:
        model: name of the model.
        payload: name of the payload.
        file: the fat file.
        bare: the payload as a separate file.
        inputs: input arguments for nfat_run.
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


def transposed(folder: Path) -> Iterator[FatModel]:
    """ResNet-18: 44 MB of weights of convolutions are transposed when the file is loaded for XNNPACK."""
    import torch
    from networks import resnet18

    torch.manual_seed(0)
    module, (image,) = resnet18()
    yield pack("ResNet-18", "xnnpack", lower(module.eval(), image, tuple(BACKENDS)), tuple(image.shape), folder)


def small(folder: Path) -> Iterator[FatModel]:
    """A model with almost no computation, to measure the cost of a call."""
    import torch

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    payloads = lower(Twice(), torch.ones(1), ("xnnpack", "portable"))
    yield pack("x + x", "xnnpack", payloads, (1,), folder)
    yield pack("x + x", "portable", {"portable": payloads["portable"]}, (1,), folder)


def lower(module: Any, example: Any, names: tuple[str, ...]) -> dict[str, bytes]:
    """Lowers a module for each backend; returns payload name to `.pte`."""
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from pteforge.tasks.export.batch_norms import fold_batch_norms
    from torch.export import export

    program = export(module, (example,))
    fold_batch_norms(program)
    partitioners = {"vulkan": [VulkanPartitioner()], "xnnpack": [XnnpackPartitioner()], "portable": None}
    return {
        name: bytes(
            to_edge_transform_and_lower(copy.deepcopy(program), partitioner=partitioners[name]).to_executorch().buffer
        )
        for name in names
    }


def pack(model: str, payload: str, payloads: Mapping[str, bytes], shape: tuple[int, ...], folder: Path) -> FatModel:
    """Writes the fat file, the bare payload and an input of ones."""
    from pteforge.formats.nfat.contents import Description
    from pteforge.formats.nfat.pack import pack_v2
    from pteforge.tasks.lower.file_programs import write_fat

    packed = pack_v2([(Description(name, BACKENDS[name], ("forward",)), content) for name, content in payloads.items()])
    stem = f"{model.replace(' ', '-')}-{payload}"
    fat, bare, ones = (folder / f"{stem}.{kind}" for kind in ("pte", "bare.pte", "bin"))
    write_fat(packed, payloads[payload], fat)
    bare.write_bytes(payloads[payload])
    ones.write_bytes(b"\x00\x00\x80\x3f" * math.prod(shape))
    return FatModel(model, payload, fat, bare, (f"{'x'.join(map(str, shape))}:{ones}",))
