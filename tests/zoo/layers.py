"""Layers of torch.nn between others: with a batch and without, parametrized, pruned, with constants made in forward.

`build` makes one by its name in `CASES`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import nn
from torch.nn.utils import parametrizations, prune

Shape = tuple[int, ...]
_SIZES: dict[int, Shape] = {1: (8,), 2: (6, 6), 3: (4, 6, 6)}


class Calling(nn.Module):
    """Computes a function of its input, and of layers where it has some."""

    def __init__(self, call: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(*self.layers, x)


def _dimensional(d: int) -> dict[str, Callable[[], nn.Module]]:
    """Layers for one, two or three dimensions with four channels, and an optional batch dimension."""

    def kind(name: str) -> Any:
        return getattr(nn, f"{name}{d}d")

    conv, transposed = kind("Conv"), kind("ConvTranspose")
    made: dict[str, Callable[[], nn.Module]] = {
        "Conv": lambda: conv(4, 6, 3, padding=1),
        "Conv same": lambda: conv(4, 6, 3, padding="same"),
        "Conv same, even": lambda: conv(4, 6, 2, padding="same"),
        "Conv same, dilated": lambda: conv(4, 6, 3, padding="same", dilation=2),
        "Conv valid": lambda: conv(4, 6, 3, padding="valid"),
        "Conv circular": lambda: conv(4, 6, 3, padding=1, padding_mode="circular"),
        "Conv same, reflect": lambda: conv(4, 6, 3, padding="same", padding_mode="reflect"),
        "Conv depthwise": lambda: conv(4, 4, 3, groups=4, bias=False),
        "Conv weight_norm": lambda: parametrizations.weight_norm(conv(4, 6, 3)),
        "Conv pruned": lambda: prune.l1_unstructured(conv(4, 6, 3), "weight", 0.5),
        "ConvTranspose": lambda: transposed(4, 6, 3, 2),
        "LPPool": lambda: kind("LPPool")(2.0, 2),
        "ConstantPad": lambda: kind("ConstantPad")((1, -1) * d, 0.5),
        "ZeroPad cropping": lambda: kind("ZeroPad")((-1, 0) * d),
    }
    made |= {name: lambda name=name: kind(name)(2) for name in ("MaxPool", "AvgPool")}
    made |= {name: lambda name=name: kind(name)(1) for name in ("ReflectionPad", "ReplicationPad", "CircularPad")}
    for name in ("AdaptiveAvgPool", "AdaptiveMaxPool"):
        made |= {f"{name} to {size}": lambda name=name, size=size: kind(name)(size) for size in (1, 2)}
    for name in ("BatchNorm", "InstanceNorm"):
        norm = kind(name)
        made |= {
            name: lambda norm=norm: norm(4, affine=True, track_running_stats=True),
            f"{name} plain": lambda norm=norm: norm(4, affine=False, track_running_stats=True),
            f"{name} of its input": lambda norm=norm: norm(4, affine=True, track_running_stats=False),
        }
    return {f"{name} {d}d": make for name, make in made.items()}


_ELEMENTWISE = (
    *("ELU", "Hardshrink", "Hardsigmoid", "Hardtanh", "Hardswish", "LeakyReLU", "LogSigmoid", "PReLU", "ReLU", "ReLU6"),
    *("RReLU", "SELU", "CELU", "GELU", "Sigmoid", "SiLU", "Mish", "Softplus", "Softshrink", "Softsign", "Tanh"),
    *("Tanhshrink", "Identity", "Dropout", "AlphaDropout"),
)
_OVER_LAST: dict[str, Callable[[], nn.Module]] = {
    "GLU": nn.GLU,
    "Softmin": lambda: nn.Softmin(-1),
    "Softmax": lambda: nn.Softmax(-1),
    "LogSoftmax": lambda: nn.LogSoftmax(-1),
    "LayerNorm": lambda: nn.LayerNorm(8),
    "LayerNorm plain": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "RMSNorm": lambda: nn.RMSNorm(8),
    "RMSNorm plain": lambda: nn.RMSNorm(8, elementwise_affine=False),
    "Linear": lambda: nn.Linear(8, 8),
    "Linear plain": lambda: nn.Linear(8, 8, bias=False),
    "Linear to 1": lambda: nn.Linear(8, 1),
    "Linear weight_norm": lambda: parametrizations.weight_norm(nn.Linear(8, 8)),
    "Linear spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(8, 8)),
    "Linear orthogonal": lambda: parametrizations.orthogonal(nn.Linear(8, 8)),
    "Linear pruned": lambda: prune.l1_unstructured(nn.Linear(8, 8), "weight", 0.5),
    "Linear pruned rows": lambda: prune.ln_structured(nn.Linear(8, 8), "weight", 0.5, n=2, dim=0),
    "Linear pruned for good": lambda: prune.remove(prune.random_unstructured(nn.Linear(8, 8), "weight", 0.5), "weight"),
    "Linear of one dimension": lambda: Calling(lambda x: F.linear(x, torch.arange(8.0))),
    "Linear of a vector": lambda: Calling(
        lambda layer, x: F.linear(x, layer.weight[0], layer.bias[0]), nn.Linear(8, 8)
    ),
    "float64": lambda: Calling(lambda x: (x.double() * 2 + x.double().mean(-1, keepdim=True)).float()),
    "float64 Linear": lambda: Calling(lambda layer, x: layer(x.double()).float(), nn.Linear(8, 8).double()),
    "Bilinear": lambda: Calling(lambda layer, x: layer(x, x), nn.Bilinear(8, 8, 8)),
    "Threshold": lambda: nn.Threshold(0.1, 0.5),
    "CosineSimilarity": lambda: Calling(lambda layer, x: layer(x, x + 1).unsqueeze(-1), nn.CosineSimilarity(-1)),
    "PairwiseDistance": lambda: Calling(lambda layer, x: layer(x, x + 1).unsqueeze(-1), nn.PairwiseDistance()),
    "pad crops": lambda: Calling(lambda x: F.pad(x, (-1, 1))),
    "pad crops and reflects": lambda: Calling(lambda x: F.pad(x[None], (-1, 1), mode="reflect")[0]),
    "batch_norm between": lambda: Calling(
        lambda norm, x: norm(x.flatten(0, -2)).unflatten(0, x.shape[:-1]), nn.BatchNorm1d(8)
    ),
}
_UNLIKE = {"batch_norm between": (2, 3, 4, 5), "Linear of a vector": (1, 3, 4, 5), "pad crops and reflects": (1, 2)}
"""Layers that do not take inputs of each number of dimensions, with those that they take."""
_MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tril_indices": lambda x: x[..., torch.tril_indices(4, 4, offset=-1)[0]],
    "triu_indices": lambda x: x[..., torch.triu_indices(4, 4)[1]],
    "hamming_window": lambda x: x * torch.hamming_window(8),
    "hann_window": lambda x: x * torch.hann_window(8, periodic=False),
    "blackman_window": lambda x: x * torch.blackman_window(8),
    "bartlett_window": lambda x: x * torch.bartlett_window(8),
    "kaiser_window": lambda x: x * torch.kaiser_window(8),
    "fftfreq": lambda x: x * torch.fft.fftfreq(8),
    "rfftfreq": lambda x: x[..., :5] * torch.fft.rfftfreq(8),
    "inverse": lambda x: x @ torch.linalg.inv(torch.eye(8) * 2 + 0.1),
    "cholesky": lambda x: x @ torch.linalg.cholesky(torch.eye(8) * 2 + 0.1),
    "linspace": lambda x: x * torch.linspace(-1, 1, 8),
    "logspace": lambda x: x * torch.logspace(-1, 1, 8),
    "vander": lambda x: x @ torch.vander(torch.arange(8.0) / 8),
    "cartesian_prod": lambda x: x * torch.cartesian_prod(torch.arange(2.0), torch.arange(4.0))[:, 1],
    "combinations": lambda x: x[..., torch.combinations(torch.arange(5))[:, 0]],
    "meshgrid": lambda x: (
        x * torch.stack(torch.meshgrid(torch.arange(2.0), torch.arange(4.0), indexing="ij"))[0].flatten()
    ),
    "kron": lambda x: x @ torch.kron(torch.eye(2), torch.ones(4, 4)),
    "block_diag": lambda x: x @ torch.block_diag(torch.eye(4), torch.ones(4, 4)),
    "tensor": lambda x: x * torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8]),
    "bucketize": lambda x: x * torch.bucketize(torch.arange(8.0), torch.tensor([2.0, 5.0])),
    "one_hot": lambda x: x @ F.one_hot(torch.arange(8) % 3, 8).float(),
    "causal": lambda x: x @ torch.full((8, 8), 0.5).tril().softmax(-1),
    "toeplitz": lambda x: x @ torch.cos(torch.arange(8.0)[:, None] - torch.arange(8.0)),
    "gaussian": lambda x: x * torch.special.i0(torch.linspace(0, 1, 8)) * torch.erfinv(torch.linspace(-0.5, 0.5, 8)),
    "sorted": lambda x: x[..., torch.sort(torch.cos(torch.arange(8.0))).indices],
    "unique": lambda x: x[..., torch.nonzero(torch.arange(8) > 3).flatten()],
    "searchsorted": lambda x: x * torch.searchsorted(torch.arange(8.0), torch.tensor([1.5] * 8)),
    "dct": lambda x: x @ torch.fft.fft(torch.eye(8)).real,
    "svd": lambda x: x @ torch.linalg.svd(torch.eye(8) + 0.1)[0].abs(),
    "matrix_exp": lambda x: x @ torch.matrix_exp(torch.eye(8) * 0.1),
    "roll": lambda x: x * torch.roll(torch.arange(8.0), 1),
    "histc": lambda x: x * torch.histc(torch.arange(8.0), 8),
    "check": lambda x: (torch._check_tensor_all(x < 1e9, lambda: "too large"), x)[1],
}
_IMAGES: dict[str, Callable[[], nn.Module]] = {
    **{
        f"Upsample {mode}": lambda mode=mode: nn.Upsample(scale_factor=2, mode=mode)
        for mode in ("nearest", "bilinear", "bicubic")
    },
    "PixelShuffle": lambda: nn.PixelShuffle(2),
    "PixelUnshuffle": lambda: nn.PixelUnshuffle(2),
    "ChannelShuffle": lambda: nn.ChannelShuffle(2),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "GroupNorm plain": lambda: nn.GroupNorm(2, 4, affine=False),
    "LocalResponseNorm": lambda: nn.LocalResponseNorm(2),
    "Softmax2d": nn.Softmax2d,
    "Dropout2d": nn.Dropout2d,
    "PReLU of channels": lambda: nn.PReLU(4),
    "Unfold": lambda: nn.Unfold(2),
    "squeeze and excite": lambda: Calling(
        lambda down, up, x: x * F.hardsigmoid(up(F.relu(down(F.adaptive_avg_pool2d(x, 1))))),
        nn.Conv2d(4, 2, 1),
        nn.Conv2d(2, 4, 1),
    ),
    "mean over images": lambda: Calling(lambda x: x.mean((2, 3))),
    "mean over lines": lambda: Calling(lambda x: x.mean((2, 3), keepdim=True)),
    "roll": lambda: Calling(lambda x: x.roll((1, 1), (2, 3))),
    "flip": lambda: Calling(lambda x: x.flip(3)),
}
_UNBATCHED = {"PixelShuffle", "PixelUnshuffle", "Softmax2d", "Unfold", "Dropout2d"}
_NHWC: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    **{
        f"interpolate {mode}": lambda x, mode=mode: F.interpolate(x, size=(6, 6), mode=mode)
        for mode in ("nearest", "bilinear", "bicubic", "area")
    },
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "conv2d": lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, torch.ones(4, 4, 3, 3)),
    "unfold": lambda x: F.unfold(x, 2).unsqueeze(1),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
    "group_norm": lambda x: F.group_norm(x, 2),
    "instance_norm": F.instance_norm,
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "grid_sample": lambda x: F.grid_sample(x, F.affine_grid(torch.eye(2, 3)[None], [1, 4, 6, 6])),
    "softmax": lambda x: x.softmax(1),
    "cumsum": lambda x: x.cumsum(1),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1),
    "split": lambda x: torch.cat(x.split(2, 1)[::-1], 1),
    "stack": lambda x: torch.stack([x, x], 2).flatten(1, 2),
    "where": lambda x: torch.where(x > 0, x, 0.1),
    "sort": lambda x: x.sort(1).values,
    "argmax": lambda x: x.argmax(1, keepdim=True).float(),
    "prelu": lambda x: F.prelu(x, torch.full((4,), 0.1)),
    "lp_pool": lambda x: F.lp_pool2d(x, 2.0, 2),
    "topk": lambda x: x.topk(2, 1).values,
    "reshape": lambda x: x.reshape(1, 2, 8, -1),
    "view": lambda x: x.contiguous().view(1, 2, 8, -1),
    "matmul": lambda x: x @ x.mT,
    "index": lambda x: x[:, [2, 0]],
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "add": lambda x: x + torch.ones(1, 4, 1, 1),
    "mean": lambda x: x.mean((2, 3), keepdim=True),
    "amax": lambda x: x.amax((2, 3), keepdim=True),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "clone": lambda x: x.clone(),
    "zeros_like": lambda x: x + torch.zeros_like(x) + torch.empty_like(x).fill_(1),
    "full_like": lambda x: x * torch.full_like(x, 2.0),
    "cat": lambda x: torch.cat([x, x.contiguous()], 1),
}


class Surrounded(nn.Module):
    """A layer after and before others."""

    def __init__(self, before: nn.Module, layer: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before, self.layer, self.after = before, layer, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.layer(self.before(x)))


_Case = tuple[Callable[[], nn.Module], Shape, str]
_RANKS: tuple[Shape, ...] = ((), (8,), (3, 8), (2, 3, 8), (2, 4, 3, 8), (1, 2, 4, 3, 8))
_FEW = ("Hardswish", "GELU", "PReLU", "LeakyReLU")


def _cases() -> Iterator[tuple[str, _Case]]:
    """A name, what makes a layer, the shape of its input, and what surrounds it."""
    yield from _of_lines_and_images()
    for name, make in _IMAGES.items():
        for other in ("", "conv2d"):
            yield f"{name}, {other}", (make, (1, 4, 6, 6), other)
            if name in _UNBATCHED:
                yield f"{name}, {other}, no batch", (make, (4, 6, 6), other)
    for name, call in _NHWC.items():
        for other in ("", ", linear"):
            yield f"{name} of NHWC{other}", (partial(Calling, call), (1, 6, 6, 4), f"permute{other}")
    for name, call in _MADE.items():
        yield f"{name} made", (partial(Calling, call), (2, 8), "linear")
    yield from _of_all_ranks()


def _of_lines_and_images() -> Iterator[tuple[str, _Case]]:
    for d, size in _SIZES.items():
        for name, make in _dimensional(d).items():
            for other in ("", "linear") if d == 3 else ("", "linear", f"conv{d}d"):
                yield f"{name}, {other}", (make, (2, 4, *size), other)
                if "Batch" not in name:
                    yield f"{name}, {other}, no batch", (make, (4, *size), other)


def _of_all_ranks() -> Iterator[tuple[str, _Case]]:
    for number, shape in enumerate(_RANKS):
        for name in _ELEMENTWISE if number in (0, 1, 3) else _FEW:
            yield f"{name}, {number}", (getattr(nn, name), shape, "linear" if shape else "")
        for name, make in _OVER_LAST.items() if shape else ():
            if number in _UNLIKE.get(name, range(6)):
                yield f"{name}, {number}", (make, shape, "linear")


CASES: dict[str, _Case] = dict(_cases())


def build(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A layer and what surrounds it, with norms that do something."""
    torch.manual_seed(0)
    make, shape, around = CASES[name]
    layer, x = make().eval(), torch.randn(shape)
    before: nn.Module = nn.Identity()
    if "linear" in around:
        before = nn.Linear(shape[-1], shape[-1])
    if "conv" in around:
        before = getattr(nn, f"C{around[1:]}")(4, 4, 3, padding=1)
    if "permute" in around:
        before = nn.Sequential(before, Calling(lambda x: x.permute(0, 3, 1, 2)))
    for norm in layer.modules():
        for tensor in (getattr(norm, "running_mean", None), getattr(norm, "running_var", None)):
            if tensor is not None:
                nn.init.uniform_(tensor, 0.5, 2)
    with torch.no_grad():
        made = layer(before(x))
    after: nn.Module = nn.Identity()
    if "permute" in around:
        layer = nn.Sequential(layer, Calling(lambda x: x.permute(0, 2, 3, 1)))
        made = made.permute(0, 2, 3, 1)
    if "linear" in around and made.dim():
        after = nn.Linear(made.shape[-1], 4)
    if "conv" in around and made.dim() == len(shape):
        after = getattr(nn, f"C{around[1:]}")(made.shape[-2 if around == "conv1d" else -3], 4, 1)
    return Surrounded(before, layer, after).eval(), (x,)
