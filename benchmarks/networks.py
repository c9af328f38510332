"""Networks with random weights: of well-known shapes, at full size, and any number of small ones for zoos."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measuring import write_zoo
from torch import nn

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Encoder(nn.Module):
    """Embeds tokens or patches, and runs them through transformer layers."""

    def __init__(self, embedding: nn.Module, length: int, layers: int, *, outputs: int, causal: bool) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = nn.Parameter(torch.randn(1, length, 768) / 50)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True, norm_first=causal)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(768, outputs)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length) if causal else None)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Tokens [n, length] or an image [n, 3, h, w] to [n, length, outputs]."""
        embedded = self.embedding(given) + self.positions
        return self.head(self.layers(embedded, mask=self.mask, is_causal=self.mask is not None))


class Patches(nn.Module):
    """Cuts images [n, 3, 224, 224] into embedded patches, [n, 196, 768]."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, 768, 16, 16)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        return self.projection(image).flatten(2).transpose(1, 2)


def distilbert() -> Built:
    """6 layers over 64 tokens, and a classifier."""
    model = Encoder(nn.Embedding(30522, 768), 64, 6, outputs=2, causal=False)
    return model, (torch.randint(30522, (1, 64)),)


def gpt2() -> Built:
    """12 causal layers over 32 tokens, and a vocabulary of 50,257."""
    model = Encoder(nn.Embedding(50257, 768), 32, 12, outputs=50257, causal=True)
    return model, (torch.randint(50257, (1, 32)),)


def vit() -> Built:
    """12 layers over 196 patches of an image of 224 by 224 pixels."""
    return Encoder(Patches(), 196, 12, outputs=1000, causal=False), (torch.randn(1, 3, 224, 224),)


def _convolution(inputs: int, outputs: int, size: int = 3, **options: Any) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False, **options), nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """Adds the input, projected where the shape changes, to what the layers make of it."""

    def __init__(self, *layers: nn.Module, shortcut: nn.Module | None = None, last: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.shortcut = shortcut or nn.Identity()
        self.last = last or nn.Identity()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """[n, c, h, w] to [n, c', h', w']."""
        return self.last(self.layers(image) + self.shortcut(image))


def resnet18() -> Built:
    """Eight blocks of two convolutions each."""
    blocks: list[nn.Module] = []
    inputs = 64
    for width in (64, 128, 256, 512):
        for _ in range(2):
            stride = 2 if width > inputs else 1
            shortcut = nn.Sequential(*_convolution(inputs, width, 1, stride=stride)) if stride == 2 else None
            layers = [*_convolution(inputs, width, stride=stride), nn.ReLU(), *_convolution(width, width)]
            blocks.append(Residual(*layers, shortcut=shortcut, last=nn.ReLU()))
            inputs = width
    stem = [*_convolution(3, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*stem, *blocks, *head), (torch.randn(1, 3, 224, 224),)


def mobilenet_v2() -> Built:
    """Seventeen inverted residual blocks with depthwise convolutions."""
    blocks: list[nn.Module] = []
    inputs = 32
    for expansion, width, count, first in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for block in range(count):
            stride, inner = (first if block == 0 else 1), inputs * expansion
            expanding = [*_convolution(inputs, inner, 1), nn.ReLU6()] if expansion > 1 else []
            depthwise = [*_convolution(inner, inner, stride=stride, groups=inner), nn.ReLU6()]
            layers = [*expanding, *depthwise, *_convolution(inner, width, 1)]
            blocks.append(Residual(*layers) if stride == 1 and inputs == width else nn.Sequential(*layers))
            inputs = width
    stem = [*_convolution(3, 32, stride=2), nn.ReLU6()]
    head = [*_convolution(320, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*stem, *blocks, *head), (torch.randn(1, 3, 224, 224),)


class Recurrent(nn.Module):
    """Recurrent layers over 12 frames of sound, after a convolution of each frame or of five, and a classifier."""

    def __init__(self, kind: type[nn.Module], *, convolution: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(40, 64, 5, padding=2), nn.ReLU()) if convolution else nn.Conv1d(40, 64, 1)
        self.layers, self.last = kind(64, 96, 2, batch_first=True), nn.Linear(96, 12)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """[n, 40, 12] to [n, 12]."""
        return self.last(self.layers(self.first(sound).mT)[0][:, -1])


def recurrent(kind: str, convolution: bool = False) -> Built:
    """Two layers of a kind, such as ``LSTM``."""
    torch.manual_seed(0)
    return Recurrent(getattr(nn, kind), convolution=convolution), (torch.randn(2, 40, 12),)


@dataclass(frozen=True)
class Llama:
    """Sizes of a Llama with a vocabulary of 32,000."""

    width: int
    layers: int
    inner: int
    dtype: torch.dtype = torch.float32

    @property
    def weights(self) -> int:
        """Bytes of all parameters."""
        layer = 4 * self.width**2 + 3 * self.width * self.inner + 2 * self.width
        return (2 * 32000 * self.width + self.layers * layer + self.width) * self.dtype.itemsize


LLAMAS = {
    "tiny": Llama(64, 2, 128),
    "135M": Llama(768, 12, 2048),
    "500M": Llama(1280, 21, 3584),
    "1B-bf16": Llama(2048, 17, 5632, torch.bfloat16),
}


def llama(size: str) -> Built:
    """ExecuTorch's own Llama, with 8 tokens and without a cache."""
    from executorch.examples.models.llama.llama_transformer import construct_transformer
    from executorch.examples.models.llama.model_args import ModelArgs

    chosen = LLAMAS[size]
    heads = chosen.width // 64
    args = ModelArgs(
        dim=chosen.width, n_layers=chosen.layers, n_heads=heads, n_kv_heads=heads, hidden_dim=chosen.inner,
        vocab_size=32000, max_seq_len=128, max_context_len=128, generate_full_logits=True,
    )  # fmt: skip
    default = torch.get_default_dtype()
    torch.set_default_dtype(chosen.dtype)
    try:
        model = construct_transformer(args)
    finally:
        torch.set_default_dtype(default)
    return model, (torch.randint(32000, (1, 8)),)


def encoder(layers: int, width: int, seed: int) -> Built:
    """An encoder without dropout, for 8 tokens: with more, verifying it on portable kernels takes most of the time."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), (torch.randn(1, 8, width),)


def write_generated(folder: Path, models: int, *, alignment: int = 128, **changes: dict[str, Any]) -> Path:
    """Writes a zoo of so many small models, no two of them alike, with recipes for portable kernels and for XNNPACK.

    `changes` are arguments of `generated` by name of the model, `alignment` is an option of the recipe for XNNPACK.
    """
    sources = {}
    for number in range(models):
        name = f"model{number:04}"
        sources[name] = {"builder": "networks:generated", "kwargs": {"number": number, **changes.get(name, {})}}
    xnnpack = {"specializations": [{"target": "xnnpack"}], "compile": {"segment_alignment": alignment}}
    return write_zoo(
        folder,
        {name: {"source": source} for name, source in sources.items()},
        defaults={"recipes": ["portable-fp32", "xnnpack"]},
        recipes={"xnnpack": xnnpack},
    )


def generated(number: int, seed: int = 0, width: int = 0) -> Built:
    """A convolutional network, perceptron, transformer layer or LSTM, by `number`, and `width` times wider."""
    torch.manual_seed(seed)
    size, depth = 16 + 4 * (number // 4 % 16) + width, 2 + number // 64 % 4
    match number % 4:
        case 0:
            blocks = [
                layer
                for block in range(2 * depth)
                for layer in (nn.Conv2d(size if block else 3, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU())
            ]
            return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, 10)), (
                torch.randn(1, 3, 32, 32),
            )
        case 1:
            layers = [layer for _ in range(2 * depth) for layer in (nn.Linear(4 * size, 4 * size), nn.ReLU())]
            return nn.Sequential(*layers), (torch.randn(1, 4 * size),)
        case 2:
            layer = nn.TransformerEncoderLayer(4 * size, 4, 8 * size, batch_first=True)
            return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), (torch.randn(1, 16, 4 * size),)
        case _:
            return nn.LSTM(size, size, depth, batch_first=True), (torch.randn(1, 8, size),)
