"""Finds out which faults of the installed torch and ExecuTorch are still there, by the smallest case of each patch.

`python -m pteforge.api.probes [PATCH ...]` lowers each case with its patch and without it, and prints what came of both
as JSON. Each attempt has a process of its own, since some patches are applied when our modules are imported.
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
from ..tasks.upstream.patches import OFF

PORTABLE = {"specializations": [{"target": "portable"}]}
XNNPACK = {"specializations": [{"target": "xnnpack"}]}
STATIC = {**XNNPACK, "quantize": {"quantizer": "xnnpack"}, "verify": {"min_sqnr_db": 20}}
DYNAMIC = {**XNNPACK, "quantize": {"quantizer": "xnnpack", "options": {"dynamic": True}}, "verify": {"min_sqnr_db": 20}}
CASES: dict[str, tuple[Callable[[], Any], Mapping[str, Any]]] = {}
"""A builder of the smallest model that shows the fault that a patch mends, and a recipe, by the patch's name."""


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


@case(XNNPACK)
def expand_tanh_gelu() -> Any:
    return nn.GELU("tanh"), (torch.randn(2, 16) * 3,)


def lower(name: str) -> str:
    """``made`` and the digest of the file, or the error."""
    from .export import export  # noqa: PLC0415 - imports modules that apply patches

    builder, recipe = CASES[name]
    torch.manual_seed(0)
    model = builder()
    arguments = (model,) if isinstance(model, ModelDefinition) else model
    try:
        with tempfile.TemporaryDirectory() as folder:
            return f"made {export(*arguments, recipe=dict(recipe), store=folder).sha256}"
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
        if name in names or not names:
            results[name] = [in_fork({OFF: off}, partial(lower, name)) or "died" for off in ("", name)]
            sys.stderr.write(f"{name}: {results[name][0]}; without the patch: {results[name][1]}\n")
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
