"""How many calls of six networks upstream's partitioner gives to Vulkan, and how many ours does, and which it leaves.

    python benchmarks/gpu_shares.py

Needs transformers, and no driver. Weights are random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir.backend.partitioner import Partitioner
from pteforge.tasks.targets import find_target
from torch import Tensor, nn
from transformers import (
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)


class UNet(nn.Module):
    """Two levels: [n, 3, h, w] to [n, 2, h, w], for heights and widths that are multiples of 2."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = self._block(3, 16), self._block(16, 32)
        self.up, self.last = nn.ConvTranspose2d(32, 16, 2, stride=2), self._block(32, 16)
        self.head = nn.Conv2d(16, 2, 1)

    @staticmethod
    def _block(channels_in: int, channels_out: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.BatchNorm2d(channels_out), nn.ReLU()
        )

    def forward(self, image: Tensor) -> Tensor:
        skip = self.down(image)
        deep = self.up(self.deep(nn.functional.max_pool2d(skip, 2)))
        result: Tensor = self.head(self.last(torch.cat([skip, deep], 1)))
        return result


class LlamaBlock(nn.Module):
    """A decoder layer with rotary positions, a causal mask and SwiGLU: [1, tokens, 64] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(64) for _ in range(2))
        self.qkv, self.out = nn.Linear(64, 192, bias=False), nn.Linear(64, 64, bias=False)
        self.gate, self.up, self.down = nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(128, 64)
        angles = torch.outer(torch.arange(32.0), 10000 ** (-torch.arange(0, 16, 2) / 16))
        self.register_buffer("angles", torch.cat([angles, angles], 1))

    def _rotated(self, heads: Tensor) -> Tensor:
        one, other = heads.chunk(2, -1)
        angles = self.angles[: heads.shape[2]]  # type: ignore[index]
        return heads * angles.cos() + torch.cat([-other, one], -1) * angles.sin()

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norms[0](hidden)).view(1, -1, 3, 4, 16).permute(2, 0, 3, 1, 4)
        query, key = self._rotated(query), self._rotated(key)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.norms[1](hidden)
        result: Tensor = hidden + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))
        return result


class Recurrent(nn.Module):
    """An LSTM: [n, steps, 16] to [n, steps, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.lstm(inputs)[0]
        return result


class Logits(nn.Module):
    """Of a network of transformers, the logits only."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.network(pixel_values=image).logits
        return result


def mobilenet() -> nn.Module:
    return Logits(MobileNetV2ForImageClassification(MobileNetV2Config()))


def resnet() -> nn.Module:
    sizes = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
    return Logits(ResNetForImageClassification(ResNetConfig(layer_type="basic", **sizes)))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "MobileNetV2": (mobilenet, torch.randn(1, 3, 224, 224)),
    "ResNet-18": (resnet, torch.randn(1, 3, 224, 224)),
    "U-Net": (UNet, torch.randn(1, 3, 64, 64)),
    "encoder": (encoder, torch.randn(1, 8, 64)),
    "Llama block": (LlamaBlock, torch.randn(1, 8, 64)),
    "LSTM": (Recurrent, torch.randn(1, 6, 16)),
}


def calls(network: nn.Module, example: Tensor, partitioner: Partitioner) -> tuple[Counter[str], Counter[str]]:
    """Operators of the calls that a partitioner takes, and of those that it leaves."""
    program = torch.export.export(network, (example,))
    kept, _ = partitioner.ops_to_not_decompose(program)
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True, preserve_ops=kept)
    tagged = partitioner.partition(to_edge(program, compile_config=config).exported_program()).tagged_exported_program
    nodes = [node for node in tagged.graph.nodes if hasattr(node.target, "_schema")]
    taken, left = Counter[str](), Counter[str]()
    for node in nodes:
        (taken if "delegation_tag" in node.meta else left)[node.target.name()] += 1
    return taken, left


def main() -> None:
    for name, (build, example) in NETWORKS.items():
        torch.manual_seed(0)
        network = build().eval()
        theirs = calls(network, example, VulkanPartitioner())
        ours = calls(network, example, find_target("vulkan", {}).partitioners()[0])
        shares = [f"{taken.total()} of {taken.total() + left.total()}" for taken, left in (theirs, ours)]
        more = ", ".join(f"{count} {operator}" for operator, count in sorted((ours[1] - theirs[1]).items()))
        print(f"{name}: upstream {shares[0]}, ours {shares[1]}; left by ours alone: {more or 'none'}", flush=True)


if __name__ == "__main__":
    main()
