"""What a runtime of `VulkanBackend` computes otherwise than eager: operators x values x shapes, many in a program.

    python benchmarks/gpu_search.py libexecutorch_vulkan.so [FAMILY ...]

Vulkan's own variables choose the driver, such as `VK_DRIVER_FILES`. Prints each case that is wrong, throws or ends the
process, and how many were tried. What limits leave to the CPU counts as right if the whole program is.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - registers what runs quantized operators
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.runtime import Runtime
from pteforge.tasks.targets import TargetParams, find_target
from pteforge.tasks.targets.find import find_quantizer_options, make_quantizer
from pteforge.tasks.upstream.exir_emission import floor_remainders
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

INF = float("inf")
MOST, MOST_STATIC = 1e-3, 0.03  # noise by signal: 60 and 30 dB, as outputs in int8 may be a step off
SHAPES = ((7,), (3, 6), (2, 3, 5), (2, 3, 4, 5), (1, 6, 3, 5), (2, 1, 3, 2, 5))
UNARY = "abs cos exp neg relu sigmoid sin sqrt rsqrt tanh round log10 square floor sign reciprocal"
ACTIVATIONS = "hardshrink hardswish hardtanh relu6 leaky_relu elu silu softplus mish hardsigmoid gelu logsigmoid"
BINARY = "add sub mul div pow minimum maximum lt le gt ge eq remainder"
TOTALS = "sum mean amax amin argmax argmin norm var softmax log_softmax logsumexp"
Case = tuple[str, nn.Module, list[tuple[Tensor, ...]]]  # name, what computes, and the inputs of each call


class Function(nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


class Many(nn.Module):
    """Modules in one program, each with inputs of its own."""

    def __init__(self, modules: Sequence[nn.Module], counts: Sequence[int]) -> None:
        super().__init__()
        self.parts, self.counts = nn.ModuleList(modules), counts

    def forward(self, *inputs: Tensor) -> tuple[Any, ...]:
        left = iter(inputs)
        return tuple(part(*[next(left) for _ in range(n)]) for part, n in zip(self.parts, self.counts, strict=True))


def values(shape: tuple[int, ...]) -> list[Tensor]:
    """Normal, large, huge and halved numbers, masks as attention has them, which may fill rows, infinity, and NaN."""
    normal = torch.randn(shape)
    masked, infinite, dead, nan = (normal.clone() for _ in range(4))
    masked.view(-1)[1:3] = -INF
    infinite.view(-1)[1] = INF
    dead[0] = torch.finfo(torch.float32).min
    nan.view(-1)[1] = torch.nan
    return [normal, normal * 3e4, normal * 1e30, (normal * 4).round() / 2, masked, infinite, dead, nan]


def unary() -> Iterator[Case]:
    names = UNARY.split()
    functions = {name: getattr(torch, name) for name in names}
    names = ACTIVATIONS.split()
    functions |= {name: getattr(functional, name) for name in names}
    functions |= {"clamp": lambda x: x.clamp(-0.5, 1.5), "at least": lambda x: x.clamp(min=0.1)}
    functions["<="] = lambda x: x <= 0.5
    for exponent in (-2, -1, -0.5, 0.5, 1.5, 2, 3, 4):
        functions[f"** {exponent}"] = lambda x, exponent=exponent: x**exponent
    for name, function in functions.items():
        for shape in SHAPES:
            yield f"{name} {shape}", Function(function), [(x,) for x in values(shape)]


def binary() -> Iterator[Case]:
    names = BINARY.split()
    functions = {name: getattr(torch, name) for name in names}
    functions["where"] = lambda x, y: torch.where(x > 0, x, y)
    functions["mask"] = lambda x, y: x.masked_fill(y > 0, -INF)
    for name, function in functions.items():
        for one, other in (
            ((3, 6), (6,)),
            ((2, 3, 5), (3, 1)),
            ((2, 3, 4, 5), (1, 3, 1, 1)),
            ((3, 6), ()),
            ((4, 3, 2), (2,)),
        ):
            calls = [(x, torch.randn(other)) for x in values(one)]
            yield f"{name} {one} {other}", Function(function), calls


def totals() -> Iterator[Case]:
    for name in TOTALS.split():
        for shape in SHAPES:
            for dim in range(-len(shape), 0):
                for options in [{}] if "soft" in name else [{"keepdim": False}, {"keepdim": True}]:

                    def total(
                        x: Tensor, name: str = name, dim: int = dim, options: dict[str, bool] = options
                    ) -> Tensor:
                        return getattr(x, name)(dim=dim, **options)

                    yield f"{name} {shape} {dim} {options}", Function(total), [(x,) for x in values(shape)]


def padded() -> Iterator[Case]:
    """Layers of sizes that fill no texel, after what leaves other values than zero in the rest of it."""
    before = {
        "rsqrt": lambda x: torch.rsqrt(x * x),
        "1 / x": lambda x: 1 / (x * x),
        "exp": torch.exp,
        "log": lambda x: torch.log(x * x),
        "log10": lambda x: torch.log10(x * x),
        "** -0.5": lambda x: (x * x) ** -0.5,
        "+": lambda x: x + 3,
    }
    for name, function in before.items():
        for size in (5, 6, 7):
            for layer in (nn.Linear(size, 3), nn.LayerNorm(size), nn.Softmax(-1)):
                yield f"{name} {layer}", nn.Sequential(Function(function), layer), [(torch.randn(2, 4, size),)]
            for layer in (
                nn.Conv2d(size, 4, 3),
                nn.Conv2d(size, 4, 1),
                nn.ConvTranspose2d(size, 4, 2),
                nn.AvgPool2d(2),
            ):
                yield f"{name} {layer}", nn.Sequential(Function(function), layer), [(torch.randn(1, size, 6, 5),)]


def lookups() -> Iterator[Case]:
    for rows, size in ((9, 4), (9, 5), (9, 7), (20000, 4), (65536, 4), (65540, 4), (3000, 16390)):
        for shape in ((3,), (1, 4), (2, 3), (2, 2, 3)):
            index = torch.randint(0, rows, shape)
            yield f"{rows} x {size}, {shape}", nn.Embedding(rows, size), [(index,), (torch.full(shape, rows - 1),)]
            if rows < 10:
                given = [(index.clone(), torch.randn(rows, size))]  # `torch.export` takes one tensor for one input
                yield f"given {rows} x {size}, {shape}", Function(functional.embedding), given


def groups() -> Iterator[Case]:
    for given, taken, count in ((8, 8, 2), (8, 16, 2), (12, 12, 3), (8, 12, 2), (6, 12, 6), (128, 128, 32)):
        for kernel in (1, 2, 3, 5):
            for step in (1, 2):
                layer = nn.Conv2d(given, taken, kernel, step, kernel // 2, groups=count)
                yield str(layer), layer, [(torch.randn(1, given, 9, 11),)]


def quantized() -> Iterator[Case]:
    """Static int8 of XNNPACK's and of Vulkan's quantizer, and weights of 4 and 8 bits, for rows, lines and images."""
    nets = {
        "Linear": (nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 5)), [(1, 16), (3, 16), (2, 3, 16)]),
        "Linear of odd sizes": (nn.Sequential(nn.Linear(10, 7), nn.Linear(7, 3)), [(1, 10), (3, 10)]),
        "Conv1d": (nn.Conv1d(8, 6, 3), [(1, 8, 9), (2, 8, 9)]),
    }
    for groups in (1, 2, 8):
        layers = nn.Conv2d(8, 8, 3, padding=1, groups=groups), nn.ReLU(), nn.Conv2d(8, 12, 1)
        nets[f"Conv2d in {groups} groups"] = nn.Sequential(*layers), [(1, 8, 6, 5), (2, 8, 6, 5)]
    quantizers: dict[str, tuple[str, dict[str, Any]]] = {
        "static": ("xnnpack", {}),
        "dynamic": ("xnnpack", {"dynamic": True}),
        **{
            f"{bits} bits{', dynamic' if dynamic else ''}": ("vulkan", {"weight_bits": bits, "dynamic": dynamic})
            for bits in (4, 8)
            for dynamic in (False, True)
        },
    }
    for how, (target, options) in quantizers.items():
        for name, (net, shapes) in nets.items():
            for shape in shapes:
                inputs = (torch.randn(shape),)
                quantizer = [TargetParams(name=target, options=find_quantizer_options(target, options).model_dump())]
                prepared = prepare_pt2e(torch.export.export(net.eval(), inputs).module(), make_quantizer(quantizer))
                prepared(*inputs)
                yield f"{how} {name} {shape}", convert_pt2e(prepared), [inputs, (torch.randn(shape),)]


FAMILIES = {family.__name__: family for family in (unary, binary, totals, padded, lookups, groups, quantized)}


def lower(cases: Sequence[Case]) -> tuple[Many, list[tuple[Tensor, ...]], bytes]:
    calls = max(len(inputs) for *_, inputs in cases)
    given = [tuple(x for *_, inputs in cases for x in inputs[call % len(inputs)]) for call in range(calls)]
    modules = [module if isinstance(module, GraphModule) else module.eval() for _, module, _ in cases]
    net = Many(modules, [len(inputs[0]) for *_, inputs in cases])
    programs = to_edge_transform_and_lower(
        torch.export.export(net, given[0]),
        partitioner=[*find_target("vulkan").partitioners()],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    floor_remainders(programs.exported_program())
    return net, given, programs.to_executorch().buffer


def run(library: str, content: bytes, given: Sequence[tuple[Tensor, ...]], path: Path) -> list[list[Tensor]]:
    """What the runtime returns, call by call; raises RuntimeError if it fails. Runs in a process of its own."""
    if not (child := os.fork()):
        signal.alarm(120)
        try:
            ctypes.CDLL(library)
            method = Runtime.get().load_program(content).load_method("forward")
            torch.save([[value.clone() for value in method.execute([*inputs])] for inputs in given], path)
            os._exit(0)
        except Exception as error:  # noqa: BLE001 - whatever the runtime throws
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the runtime throws, or ends the process")
    return torch.load(path)


def noise(got: Tensor, expected: Tensor) -> float:
    """Noise by signal; 0 for equal outputs, infinite where shapes, integers or what is not finite differ."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return INF
    finite = expected.isfinite()
    special = torch.equal(got[~finite].nan_to_num(0.5), expected[~finite].nan_to_num(0.5))
    if not special or (not expected.is_floating_point() and not torch.equal(got, expected)):
        return INF
    off = (got.double() - expected.double())[finite].norm().item()
    if math.isnan(off):
        return INF
    return off / (expected[finite].double().norm().item() or math.ulp(0.0)) if off else 0.0


def search(library: str, cases: Sequence[Case], path: Path) -> Counter[str]:
    try:
        net, given, content = lower(cases)
        results = run(library, content, given, path)
    except Exception as error:  # noqa: BLE001 - whatever it is, the case that has it is looked for
        if len(cases) == 1:
            print(f"fails: {cases[0][0]}: {error}")
            return Counter({"fail": 1})
        half = len(cases) // 2
        return search(library, cases[:half], path) + search(library, cases[half:], path)
    wrong: dict[str, str] = {}
    for call, (inputs, got) in enumerate(zip(given, results, strict=True)):
        left = iter(got)
        for (name, *_), expected in zip(cases, net(*[x.clone() for x in inputs]), strict=True):
            off = max(noise(next(left), value) for value in tree_leaves(expected))
            if not off <= (MOST_STATIC if name.startswith("static") else MOST):
                wrong.setdefault(name, f"call {call}: {-20 * math.log10(off):.1f} dB")
    for name, where in wrong.items():
        print(f"wrong: {name}: {where}")
    return Counter({"right": len(cases) - len(wrong), "wrong": len(wrong)})


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)  # threads do not survive a fork
    library, *chosen = sys.argv[1:] or [""]
    if unknown := {*chosen} - FAMILIES.keys():
        sys.exit(f"no families: {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    if not Path(library).is_file():
        sys.exit(f"no library: {library!r}; give the path of a runtime with VulkanBackend")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for name in chosen or FAMILIES:
            cases = list(FAMILIES[name]())
            found = Counter[str]()
            for start in range(0, len(cases), 50):
                found += search(library, cases[start : start + 50], Path(folder, "outputs"))
            print(f"{name}: {len(cases)} cases: {dict(found)}", flush=True)
