"""Small networks for microcontrollers and DSPs: bytes, planned memory and dB of files, next to other targets.

    python benchmarks/microcontrollers.py [--only NAME,...] [--write]

The models are those of MLPerf Tiny in examples/zoo, one of depthwise and one of residual layers. Each is calibrated on
32 random inputs. "ExecuTorch" is a file of its own functions for Cortex-M, in the order of their documentation, with
channels last in memory. `--write` puts the table into docs/how-to/microcontrollers.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from breadth import write_section
from measuring import exporting, markdown, temporary_folder, write_zoo
from torch import nn

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "microcontrollers.md"
TINY = "executorch.examples.models.mlperf_tiny"
MODELS = {
    "deep_autoencoder": f"{TINY}.deep_autoencoder:DeepAutoEncoderModel",
    "ds_cnn": "starter_models:ds_cnn",
    "mobilenet_v1_025": "starter_models:mobilenet_v1_025",
    "resnet8": f"{TINY}.resnet8:ResNet8Model",
    "depthwise": "microcontrollers:depthwise",
    "residual": "microcontrollers:residual",
}
INT8 = {"verify": {"min_sqnr_db": None, "min_part_sqnr_db": None}}
RECIPES: dict[str, Any] = {
    "cortex-m55": {"extends": "cortex-m55", **INT8},
    "cortex-m33": {"extends": "cortex-m33", **INT8},
    "cortex-m4": {"extends": "cortex-m4", **INT8},
    "cadence-int8": {"specializations": [{"target": "cadence"}], "quantize": {"quantizer": "cadence"}, **INT8},
    "portable-int8": {"specializations": [{"target": "portable"}], "quantize": {"quantizer": "xnnpack"}, **INT8},
    "xnnpack-int8-static": {"extends": "xnnpack-int8-static", **INT8},
}


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1), nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = self.first(image).relu()
        hidden = (hidden + self.inner(hidden)).relu()
        return self.last(hidden.mean((2, 3), keepdim=True).flatten(1))


def residual() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A residual sum."""
    return _Residual(), (torch.randn(1, 3, 32, 32),)


def depthwise() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Depthwise convolutions and those of 1 x 1, without batch norms."""
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU6()]
    for width in (8, 16, 32):
        layers += [nn.Conv2d(width, width, 3, 2, 1, groups=width), nn.ReLU6(), nn.Conv2d(width, 2 * width, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), (
        torch.randn(1, 3, 64, 64),
    )


def build(source: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A model by its function or class, with the weights of seed 0."""
    module, _, name = source.partition(":")
    made = getattr(importlib.import_module(module), name)
    torch.manual_seed(0)
    if not isinstance(made, type):
        return made()  # type: ignore[no-any-return]
    return made().get_eager_model(), made().get_example_inputs()


def samples(source: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """Random inputs."""
    example = build(source)[1][0]
    torch.manual_seed(1)
    for _ in range(32):
        yield (torch.randn(example.shape),)


def upstream(source: str, path: Path) -> None:
    """Writes a file of ExecuTorch's own functions, calibrated on the same samples."""
    from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
    from executorch.exir import to_edge
    from pteforge.tasks.upstream.cortex_m import CortexMPassManager, CortexMQuantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    module, inputs = build(source)

    def channels_last(values: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(each.to(memory_format=torch.channels_last) if each.dim() == 4 else each for each in values)

    module, inputs = module.eval().to(memory_format=torch.channels_last), channels_last(inputs)
    prepared = prepare_pt2e(torch.export.export(module, inputs).module(check_guards=False), CortexMQuantizer())
    for sample in samples(source):
        prepared(*channels_last(sample))
    manager = to_edge(
        torch.export.export(convert_pt2e(prepared), inputs), compile_config=cortex_m_edge_compile_config()
    )
    manager._edge_programs["forward"] = CortexMPassManager(manager.exported_program()).transform()  # noqa: SLF001
    path.write_bytes(manager.to_executorch().buffer)


def closeness(source: str) -> tuple[float, float]:
    """The noise of 16 outputs in dB from eager: of the quantized program, and of the one for CMSIS-NN."""
    from executorch.exir import EdgeCompileConfig
    from pteforge.tasks.backend.exir import to_edge_program
    from pteforge.tasks.upstream.cortex_m import for_cmsis_nn, kept_whole, make_quantizer
    from pteforge.tasks.upstream.reference_kernels import mended_references
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    module, inputs = build(source)
    calibrating = list(samples(source))
    prepared = prepare_pt2e(torch.export.export(module.eval(), inputs).module(check_guards=False), make_quantizer())
    for sample in calibrating:
        prepared(*sample)
    program = torch.export.export(convert_pt2e(prepared), inputs)
    edge = to_edge_program(program, [kept_whole()], EdgeCompileConfig(_check_ir_validity=False))
    signal, noises = torch.zeros(()), torch.zeros(2)
    made = [each.module(check_guards=False) for each in (program, for_cmsis_nn(edge, "m55", None))]
    with torch.no_grad(), mended_references():
        for sample in calibrating[:16]:
            wanted = module(*sample)
            signal += wanted.square().sum()
            noises += torch.stack([(wanted - each(*sample)).square().sum() for each in made])
    quantized, integers = (10 * torch.log10(signal / noises)).tolist()
    return quantized, integers


def measure(names: list[str], folder: Path) -> Iterator[list[str]]:
    """A row for each model and recipe."""
    from pteforge.formats.pte.reader import read_pte

    models = {
        name: {
            "source": MODELS[name],
            "recipes": [*RECIPES],
            "calibration": {"forward": {"dataset": "microcontrollers:samples", "kwargs": {"source": MODELS[name]}}},
        }
        for name in names
    }
    paths = [str(Path(__file__).parent), str(ROOT / "examples" / "zoo")]
    zoo = write_zoo(folder, models, recipes=RECIPES, python_path=paths)
    done = subprocess.run([*exporting(zoo, folder), "--json"], cwd=folder, stdout=subprocess.PIPE, check=False)
    for name, made in json.loads(done.stdout)["models"].items():
        for recipe, outcome in made.items():
            if not outcome.get("file"):
                yield [name, recipe, "", "", outcome["problem"].partition("\n")[0]]
                continue
            (method,) = read_pte((folder / outcome["file"]).read_bytes()).methods
            figures = [f"{outcome['size']:,}", f"{sum(method.planned_memory):,}"]
            yield [name, recipe, *figures, f"{outcome['figures']['overall']['sqnr_db']:.1f}"]
        upstream(MODELS[name], folder / "upstream.pte")
        content = (folder / "upstream.pte").read_bytes()
        yield [name, "ExecuTorch", f"{len(content):,}", f"{sum(read_pte(content).methods[0].planned_memory):,}", ""]


def main() -> None:
    """Prints the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    sys.path.append(str(ROOT / "examples" / "zoo"))
    with temporary_folder() as folder:
        rows = list(measure(options.only.split(","), folder))
    text = markdown([["model", "file", "bytes", "planned memory", "dB"], *rows])
    near = {name: closeness(MODELS[name]) for name in options.only.split(",")}
    pairs = [[name, f"{quantized:.1f}", f"{integers:.1f}"] for name, (quantized, integers) in near.items()]
    text += f"\n{markdown([['model', 'quantized program, dB', 'operators of CMSIS-NN, dB'], *pairs])}"
    print(text)
    if options.write:
        write_section(PAGE, "benchmarks/microcontrollers.py --write", text)


if __name__ == "__main__":
    main()
