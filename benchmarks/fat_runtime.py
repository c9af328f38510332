"""Loads and calls fat files and the bare payloads that they choose, in a plain C++ host; see README.md."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from measuring import HERE, arguments_of, output_of, temporary_folder

RUNTIME = HERE.parent / "runtime"

LEVELS = ("none", "parsed", "all")
"""Levels of verification; `parsed` is the default."""


@dataclass(frozen=True)
class Run:
    """Figures of one process that loaded and called a method."""

    load: float  # seconds from opening the file to a callable method
    call: float  # median seconds of a call
    loaded: int  # resident bytes of the process after loading
    called: int  # resident bytes after the calls


Pairs = Sequence[Mapping[str, Run]]
"""Pairs of processes: a run of the bare payload, and one for each level of verification."""


def longer(side: str, than: str) -> Callable[[Pairs], float]:
    """Seconds that loading takes longer."""
    return lambda pairs: median(runs[side].load - runs[than].load for runs in pairs)


def ratio(side: str, figure: str) -> Callable[[Pairs], float]:
    """A figure relative to the bare payload."""
    return lambda pairs: median(getattr(runs[side], figure) / getattr(runs["bare"], figure) for runs in pairs)


FIGURES: dict[str, tuple[str, float, int, Callable[[Pairs], float]]] = {
    "selecting": ("selecting adds to load, ms", 1e3, 3, longer("none", "bare")),
    "verifying_parsed": ("verifying what is parsed (default), ms", 1e3, 3, longer("parsed", "none")),
    "verifying_all": ("verifying all weights, ms", 1e3, 3, longer("all", "none")),
    "call": ("call adds, us", 1e6, 2, lambda pairs: median(runs["parsed"].call - runs["bare"].call for runs in pairs)),
    "loaded_ratio": ("resident after load, ratio", 1, 3, ratio("parsed", "loaded")),
    "called_ratio": ("resident after calls, ratio", 1, 3, ratio("parsed", "called")),
    "loaded_ratio_all": ("all verified, after load, ratio", 1, 3, ratio("all", "loaded")),
}
"""What a fat file costs compared with its bare payload: title, factor and digits in the table, how it is measured."""


@dataclass(frozen=True)
class Cost:
    """Medians over pairs of processes: of the bare payload, and `FIGURES` of the fat file."""

    model: str
    payload: str
    payload_bytes: int
    bare: Run
    figures: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """All figures side by side."""
        described = asdict(self)
        figures = described.pop("figures")
        return described | figures


BACKENDS = {"vulkan": ("VulkanBackend",), "xnnpack": ("XnnpackBackend",), "portable": ()}
"""Payload name to the backend ids it needs, in order of preference."""


@dataclass(frozen=True)
class FatModel:
    """A fat file, and its payload that runs on this machine."""

    model: str
    payload: str
    file: Path
    bare: Path  # the payload as a separate file
    inputs: tuple[str, ...]  # arguments for nfat_run


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
    from pteforge.tasks.backend.file_programs import write_fat

    packed = pack_v2([(Description(name, BACKENDS[name], ("forward",)), content) for name, content in payloads.items()])
    stem = f"{model.replace(' ', '-')}-{payload}"
    fat, bare, ones = (folder / f"{stem}.{kind}" for kind in ("pte", "bare.pte", "bin"))
    write_fat(packed, payloads[payload], fat)
    bare.write_bytes(payloads[payload])
    ones.write_bytes(b"\x00\x00\x80\x3f" * math.prod(shape))
    return FatModel(model, payload, fat, bare, (f"{'x'.join(map(str, shape))}:{ones}",))


def build_host(folder: Path) -> Path:
    """Builds the delegate and the host that links it; exits if that fails."""
    for command in (
        ["cmake", "-S", RUNTIME, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}", "-DNFAT_BUILD_HOST=ON"],
        ["cmake", "--build", folder, "--parallel", "2"],
    ):
        output_of(command)
    return folder / "nfat_run"


def run(host: Path, file: Path, inputs: Sequence[str], calls: int, level: str = "parsed") -> Run:
    """One process. Its first call is not counted, because some backends finish loading in it."""
    options = ["--bench", "--repeat", str(calls + 1), "--verify", level]
    figures = json.loads(output_of([host, *options, file, "forward", *inputs]))
    return Run(figures["load"], median(figures["calls"][1:]), figures["resident_loaded"], figures["resident_called"])


def measure(host: Path, fat: FatModel, calls: int, repeat: int) -> Cost:
    """Measures one fat file. The sides take turns in going first."""
    pairs = []
    for number in range(repeat + 1):
        sides = [("bare", fat.bare, "parsed"), *((level, fat.file, level) for level in LEVELS)]
        taken = {
            side: run(host, file, fat.inputs, calls, level)
            for side, file, level in (sides if number % 2 else sides[::-1])
        }
        pairs.append(taken)
    pairs = pairs[1:]  # the first one also reads the files and the libraries from disk
    load, call, loaded, called = (median(getattr(runs["bare"], field.name) for runs in pairs) for field in fields(Run))
    bare = Run(load, call, round(loaded), round(called))
    figures = {name: measure_figure(pairs) for name, (*_, measure_figure) in FIGURES.items()}
    return Cost(fat.model, fat.payload, fat.bare.stat().st_size, bare, figures)


def show(costs: Sequence[Cost], repeat: int) -> None:
    """Prints the figures as a table."""
    print(f"fat files against the bare payload that they choose, medians of {repeat} pairs of processes")
    columns = [f"{cost.model}, {cost.payload}" for cost in costs]
    print(f"{'':<44}{''.join(f'{column:>20}' for column in columns)}")
    rows = [
        ("payload, MB", [cost.payload_bytes / 1e6 for cost in costs], 3),
        ("bare: load, ms", [cost.bare.load * 1e3 for cost in costs], 3),
        ("bare: call, us", [cost.bare.call * 1e6 for cost in costs], 2),
        ("bare: resident after load, MB", [cost.bare.loaded / 1e6 for cost in costs], 2),
    ]
    for name, (title, factor, digits, _) in FIGURES.items():
        rows.append((f"fat: {title}", [cost.figures[name] * factor for cost in costs], digits))
    for name, figures, digits in rows:
        print(f"{name:<44}{''.join(f'{figure:>20.{digits}f}' for figure in figures)}")


def main() -> None:
    """Measures and prints."""
    parser = arguments_of(__doc__, repeat="pairs of processes", times=15)
    parser.add_argument("--host", type=Path, metavar="FILE", help="nfat_run of a release build (default: build it)")
    arguments = parser.parse_args()
    with temporary_folder() as folder:
        host = arguments.host or build_host(folder / "build")
        costs = [measure(host, fat, 5, arguments.repeat) for fat in weights(folder)]
        costs += [measure(host, fat, 5, arguments.repeat) for fat in transposed(folder)]
        costs += [measure(host, fat, 20_000, arguments.repeat) for fat in small(folder)]
    if arguments.json:
        print(json.dumps([cost.to_json() for cost in costs], indent=2))
    else:
        show(costs, arguments.repeat)


if __name__ == "__main__":
    main()
