"""Finds out which faults of the installed torch and ExecuTorch are still there, by smallest cases.

`python -m pteforge.api.probes [NAME ...]` lowers the case of each patch or limit with it and without it, and prints
what came of both as JSON. Cases of limits also run, on the driver of the library that `PTEFORGE_VULKAN_LIBRARY` names.
Each attempt has a process of its own, since some patches are applied when our modules are imported.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner  # noqa: F401 - once for all
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer  # noqa: F401 - as above
from executorch.exir import to_edge_transform_and_lower  # noqa: F401 - as above
from executorch.runtime import Runtime  # noqa: F401 - as above
from torch import nn
from torch.export import Dim

from ..configs.model import MethodDefinition, ModelDefinition
from ..errors import PteforgeError, first_line
from ..tasks.upstream.patches import LIBRARY, NOT_TRIED, OFF

PORTABLE = {"specializations": [{"target": "portable"}]}
XNNPACK = {"specializations": [{"target": "xnnpack"}]}
STATIC = {**XNNPACK, "quantize": {"quantizer": "xnnpack"}, "verify": {"min_sqnr_db": 20}}
DYNAMIC = {**XNNPACK, "quantize": {"quantizer": "xnnpack", "options": {"dynamic": True}}, "verify": {"min_sqnr_db": 20}}
VULKAN = {"specializations": [{"target": "vulkan"}], "verify": {"drawn_inputs": 0}}
CASES: dict[str, tuple[Callable[[], Any], Mapping[str, Any]]] = {}
"""A builder of the smallest model that shows a fault, and a recipe, by the name of what is done about it."""


def case(recipe: Mapping[str, Any]) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Adds the case of the patch that has the builder's name."""

    def add(builder: Callable[[], Any]) -> Callable[[], Any]:
        CASES[builder.__name__] = builder, recipe
        return builder

    return add


class Function(nn.Module):  # type: ignore[misc] # torch has no types here
    """A model that is a function of itself, whose layers and tensors it has, and of its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def _dynamic(
    function: Callable[..., Any], example: torch.Tensor, dims: Mapping[int, Dim], **parts: Any
) -> ModelDefinition:
    method = MethodDefinition(Function(function, **parts), [(example,)], ((dict(dims),),))  # of `*inputs`
    return ModelDefinition({"forward": method})


_BATCH = {0: Dim("batch", min=1, max=8)}


@case(PORTABLE)
def take_numbers_as_tensors() -> Any:
    return Function(lambda _, x: 17 % x), (torch.tensor([3, -3, 5]),)


@case(PORTABLE)
def no_idle_decompositions() -> Any:
    def attend(_: Function, tokens: torch.Tensor) -> torch.Tensor:
        heads = tokens.view(*tokens.shape[:2], 2, 4).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return mixed.transpose(1, 2).view(-1, 8)

    return _dynamic(attend, torch.randn(2, 4, 8), {**_BATCH, 1: Dim("length", min=2, max=32)})


@case(PORTABLE)
def unrefined_ranges() -> Any:
    batch = {0: Dim("batch", min=1, max=64)}
    return _dynamic(lambda net, x: net.conv(x), torch.randn(2, 3, 8, 8), batch, conv=nn.Conv2d(3, 4, 3))


@case(PORTABLE)
def functions_of_sizes() -> Any:
    return _dynamic(lambda _, x: x * torch.sym_max(x.shape[0], 4), torch.randn(2, 3), _BATCH)


@case(PORTABLE)
def whole_lists() -> Any:
    return _dynamic(lambda _, x: x.chunk(2, 1)[0].relu(), torch.randn(2, 4), _BATCH)


@case(PORTABLE)
def full_for_empty() -> Any:
    return _dynamic(lambda _, x: torch.empty(x.shape[0], 2).fill_(1.0) + x[:, :2], torch.randn(2, 4), _BATCH)


@case(XNNPACK)
def numbers_of_one_type() -> Any:
    return nn.Hardsigmoid(), (torch.randn(2, 4),)


@case(PORTABLE)
def one_layout() -> Any:
    def shuffle(_: Function, x: torch.Tensor) -> torch.Tensor:
        return torch.pixel_shuffle(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)

    return Function(shuffle), (torch.randn(1, 3, 3, 8),)


@case(PORTABLE)
def copy_results_of_cond() -> Any:
    def add(_: Function, x: torch.Tensor) -> Any:
        first, second = (torch.cond(x.sum() > 0, torch.sin, torch.cos, (x * n,)) for n in (1, 2))
        return first + second

    return Function(add), (torch.ones(2, 3),)


@case(PORTABLE)
def floor_remainders() -> Any:
    return _dynamic(lambda _, x: x * (-x.shape[0] % 8), torch.randn(3, 2), _BATCH)


@case(XNNPACK)
def constants_once() -> Any:
    words = nn.Embedding(256, 128)
    compare = Function(lambda net, x: nn.functional.linear(x, net.words.weight), words=words)
    methods = {"encode": (words, torch.arange(4).reshape(1, 4)), "decode": (compare, torch.randn(1, 128))}
    return ModelDefinition({name: MethodDefinition(net, [(example,)]) for name, (net, example) in methods.items()})


@case(PORTABLE)
def uncompared_masks() -> Any:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 1), (torch.randn(2, 5, 16), nn.Transformer.generate_square_subsequent_mask(5))


@case(PORTABLE)
def comparable_strides() -> Any:
    def repeat(net: Any, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([net.kept, x], dim=2)
        return both[:, :, None].expand(1, 2, 2, both.shape[2], 8).reshape(1, 4, both.shape[2], 8) * 2

    kept = nn.Parameter(torch.randn(1, 2, 6, 8))
    return _dynamic(repeat, torch.randn(1, 2, 7, 8), {2: Dim("n", min=1, max=24)}, kept=kept)


@case(DYNAMIC)
def whole_dynamic_quantization() -> Any:
    def add(net: Any, x: torch.Tensor) -> torch.Tensor:
        return net.of_input(x) + net.of_constant(torch.zeros_like(net.learned))

    layers = {"of_input": nn.Linear(16, 8), "of_constant": nn.Linear(16, 8)}
    return Function(add, **layers, learned=nn.Parameter(torch.randn(4, 16))), (torch.randn(4, 16),)


@case(XNNPACK)
def mend_batch_norms() -> Any:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(5)), (torch.randn(2, 5, 4),)


@case(DYNAMIC)
def mend_dynamic_layouts() -> Any:
    pad = Function(lambda net, x: net.conv(nn.functional.pad(x, (1, 1))), conv=nn.Conv2d(4, 4, 3))
    return pad, (torch.randn(1, 4, 6, 6),)


@case(STATIC)
def mend_static_layouts() -> Any:
    def pool(net: Any, x: torch.Tensor) -> Any:
        y = net.conv(x)
        return nn.functional.avg_pool2d(y, 2), y

    return Function(pool, conv=nn.Conv2d(8, 8, 3, padding=1)), (torch.randn(1, 8, 8, 8),)


@case(STATIC)
def join_in_float() -> Any:
    def join(net: Any, x: torch.Tensor) -> torch.Tensor:
        values = [x]
        for layer in net.layers:
            values.append(layer(values[-1]).relu())
        return net.last(torch.cat(values[1:], 1))

    layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(6))
    for layer in layers:
        layer.weight.data.abs_().mul_(2)  # so that each has larger values than the one before
    return Function(join, layers=layers, last=nn.Conv2d(24, 2, 1)), (torch.rand(1, 4, 8, 8),)


@case(XNNPACK)
def expand_tanh_gelu() -> Any:
    return nn.GELU("tanh"), (torch.randn(2, 16) * 3,)


def _call(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    return Function(lambda _, *given: function(*given)), inputs


def _layer(build: Callable[..., nn.Module], *arguments: Any, shape: tuple[int, ...], **options: Any) -> Any:
    return build(*arguments, **options), (torch.randn(shape),)


_IMAGE = (1, 8, 9, 9)
_INTS = torch.tensor([-4, 1, 2, 3], dtype=torch.int32)
_LIMITS: dict[str, Callable[[], Any]] = {
    "contiguous_values": lambda: _call(
        lambda x: x.relu().to(memory_format=torch.channels_last), torch.randn(2, 6, 5, 3)
    ),
    "integers_of_32_bits": lambda: _call(lambda x: x * 3, torch.tensor([1 << 40])),
    "results_of_dynamic_sizes": lambda: _dynamic(lambda _, x: x.chunk(2, 1)[1] * 2, torch.randn(2, 4), _BATCH),
    "squeezed_tensors": lambda: _dynamic(lambda _, x: x.relu(), torch.randn(2, 1, 8), _BATCH),
    "rounded_quotients": lambda: _call(lambda x: x // 0.3, torch.tensor([3.0])),
    "nan_of_odd_dimensions": lambda: _call(torch.relu, torch.tensor(torch.nan)),
    "equality": lambda: _call(torch.eq, torch.zeros(2), torch.tensor([0, 1e-6])),
    "general_powers": lambda: _call(torch.pow, torch.tensor([-2.0, 3]), torch.tensor([3.0, 2])),
    "masked_logarithms": lambda: _call(lambda x: x.log_softmax(-1), torch.tensor([[1, 2, -torch.inf]])),
    "negative_indices": lambda: _call(lambda x, at: x[at], torch.randn(3, 4), torch.tensor([0, -1]).int()),
    "absent_operators": lambda: _call(torch.logical_not, torch.tensor([True, False])),
    "norms_of_several_dimensions": lambda: _layer(nn.LayerNorm, (6, 8), shape=(2, 6, 8)),
    "hardswish_of_odd_dimensions": lambda: _layer(nn.Hardswish, shape=(1, 2, 2, 3, 8)),
    "convolutions_in_groups": lambda: _layer(nn.Conv2d, 8, 12, 3, groups=2, shape=_IMAGE),
    "depthwise_convolutions": lambda: _layer(nn.Conv2d, 8, 8, 7, padding=3, groups=8, shape=_IMAGE),
    "integers_of_24_bits": lambda: _call(lambda x: x + 1, _INTS + (1 << 24)),
    "results_without_dimensions": lambda: _call(lambda x: x[0] * x[1], torch.randn(3)),
    "bounds_of_integers": lambda: _call(lambda x: x.int().clamp(0.5, 2.5), torch.tensor([True, False])),
    "convolutions_of_lines": lambda: _layer(nn.Conv1d, 3, 7, 1, 2, shape=(1, 3, 8)),
    "norms_of_no_images": lambda: _layer(nn.BatchNorm1d, 6, shape=(2, 6, 5)),
    "upsampling": lambda: _layer(nn.Upsample, (7, 8), shape=(1, 6, 5, 3)),
    "broadcast_conditions": lambda: _dynamic(lambda _, x: x.masked_fill(x[:1] > 0, 0), torch.randn(2, 4), _BATCH),
    "conversions_to_bool": lambda: _call(lambda x: x.bool(), _INTS),
    "totals_over_outer_dimensions": lambda: _layer(nn.Softmax, 1, shape=(2, 6, 5, 3)),
    "positions_of_nan": lambda: _call(lambda x: x.argmax(-1), torch.tensor([[1, torch.nan, 2]])),
    "positions_that_keep_dimensions": lambda: _call(lambda x: x.mm(x).argmax(-1, keepdim=True), torch.randn(3, 3)),
    "transposed_dilations": lambda: _layer(nn.ConvTranspose2d, 8, 7, 3, dilation=2, shape=_IMAGE),
    "norms_without_weights": lambda: _layer(nn.LayerNorm, 7, bias=False, shape=(2, 7)),
    "wide_tables": lambda: (nn.Embedding(16385, 4), (torch.tensor([[1, 16384]]),)),
    "infinite_texels": lambda: (
        Function(lambda net, x: net.conv(torch.rsqrt(x)), conv=nn.Conv2d(5, 4, 3)),
        (torch.rand(1, 5, 4, 3) + 1,),
    ),
    "given_tables": lambda: _call(nn.functional.embedding, torch.tensor([[0, 8]]), torch.randn(9, 8)),
    "given_weights": lambda: _call(nn.functional.conv2d, torch.randn(1, 6, 5, 3), torch.randn(4, 6, 2, 2)),
    "computed_layers": lambda: _call(nn.functional.linear, torch.randn(2, 8), torch.randn(3, 8)),
}
CASES |= {name: (builder, VULKAN) for name, builder in _LIMITS.items()}


def lower(name: str) -> str:
    """``made`` and, but for limits, the digest of the file; or the error."""
    from ..tasks.verify.running import load_libraries  # noqa: PLC0415 - as below
    from .export import export  # noqa: PLC0415 - imports modules that apply patches

    builder, recipe = CASES[name]
    torch.manual_seed(0)
    model = builder()
    arguments = (model,) if isinstance(model, ModelDefinition) else model
    try:
        with tempfile.TemporaryDirectory() as folder:
            if name in _LIMITS:
                load_libraries([os.environ[LIBRARY]], {})
            made = export(*arguments, recipe=dict(recipe), store=folder)
            return "made" if name in _LIMITS else f"made {made.sha256}"
    except PteforgeError as error:
        return f"refused: {first_line(error)}"
    except Exception as error:  # noqa: BLE001 - torch's and ExecuTorch's
        return f"failed: {type(error).__name__}: {first_line(error)}"


def in_fork(environment: Mapping[str, str], work: Callable[[], Any]) -> Any:
    """What a function returns in a new process, as JSON; None if that died."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        with os.fdopen(read) as file:
            answer = file.read()
        os.waitpid(pid, 0)
        return json.loads(answer) if answer else None
    os.close(read)
    os.environ.update(environment)
    with os.fdopen(write, "w") as file:
        json.dump(work(), file)
    os._exit(0)


def main(*names: str) -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = {}
    for name in CASES:
        if names and name not in names:
            continue
        if name in _LIMITS and not os.environ.get(LIBRARY):
            results[name] = [NOT_TRIED, ""]
        else:
            results[name] = [in_fork({OFF: off}, partial(lower, name)) or "died" for off in ("", name)]
            sys.stderr.write(f"{name}: {results[name][0]}; without it: {results[name][1]}\n")
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
