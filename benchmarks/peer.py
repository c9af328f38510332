"""The peer: lowers a zoo with `executorch.export` sessions, one after another in one process.

Usage: ``python benchmarks/peer.py ZOO FOLDER [--apart]``. The ``.pte`` files are written into the folder. With
``--apart`` it is each stage's program instead, in a file of its own, to measure their size: the ATen program as
``<recipe>.aten.pt2`` (`torch.export.save`) and the edge program as ``<recipe>.edge.pt2``. The latter uses ExecuTorch's
own saver, which writes the same format, because `torch.export.save` rejects some edge operators, such as those of an
LSTM. Programs with delegates are not written: that saver writes their bytes as text, which would flatter us.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Zoo:
    """A zoo file, and what it names."""

    file: Path
    builders: Mapping[str, str]  # by name of the model
    recipes: tuple[str, ...]  # of every model, for the peer
    files: tuple[str, ...]  # that pteforge makes of every model: those of the recipes, or one fat file


STARTER = {
    "deep_autoencoder": "executorch.examples.models.mlperf_tiny:DeepAutoEncoderModel",
    "ds_cnn": "executorch.examples.models.mlperf_tiny:DSCNNKWSModel",
    "lstm": "executorch.examples.models.lstm:LSTMModel",
    "mobilenet_v1_025": "executorch.examples.models.mlperf_tiny:MobileNetV1025Model",
    "resnet8": "executorch.examples.models.mlperf_tiny:ResNet8Model",
    "sdpa": "executorch.examples.models.toy_model.model:SdpaModule",
}
VARIED = {name: f"starter_models:{name}" for name in ("ds_cnn", "mobilenet_v1_025")}
PLAIN = ("portable-fp32", "xnnpack-fp32")
MID_SIZE = {name: f"networks:{name}" for name in ("distilbert", "gpt2", "resnet18", "vit")}
ZOOS = {
    "starter": Zoo(HERE.parent / "examples" / "zoo" / "starter.yaml", STARTER | VARIED, PLAIN, PLAIN),
    "four-targets": Zoo(HERE / "four_targets.yaml", STARTER, (*PLAIN, "vulkan-fp32", "mlx-fp32"), ("fat",)),
    "mid-size": Zoo(HERE / "mid_size.yaml", MID_SIZE, ("xnnpack-fp32",), ("xnnpack-fp32",)),
}


@dataclass(frozen=True)
class Lowering:
    """One file to make."""

    recipe: str
    file: Path  # of the result in the output folder, the same as pteforge's
    module: Any  # eager, in eval mode
    example_inputs: tuple[Any, ...]
    partitioners: Sequence[Any] | None  # as the target of the recipe has them; None for the portable one


def lowerings(zoo: str) -> Iterator[Lowering]:
    """Every lowering of a zoo. Each builds its model again, as separate scripts would."""
    from pteforge.tasks.targets.find import find_target

    for model, builder in ZOOS[zoo].builders.items():
        for recipe in ZOOS[zoo].recipes:
            module, example_inputs = build(builder)
            yield Lowering(
                recipe,
                Path(model) / f"{recipe}.pte",
                module.eval(),
                example_inputs,
                find_target(recipe.removesuffix("-fp32")).partitioners() or None,
            )


def build(builder: str) -> tuple[Any, tuple[Any, ...]]:
    """The module and example inputs, of a function or of one of ExecuTorch's classes of models."""
    module_name, _, name = builder.partition(":")
    with patch.object(sys, "path", [*sys.path, str(HERE.parent / "examples" / "zoo")]):
        model = getattr(import_module(module_name), name)()
    return model if isinstance(model, tuple) else (model.get_eager_model(), model.get_example_inputs())


def save_programs(lowering: Lowering, file: Path) -> None:
    """Exports a model, lowers it to the edge dialect, and saves both programs."""
    import torch
    from executorch.exir import to_edge
    from executorch.exir.serde import serialize as edge_files

    aten = torch.export.export(lowering.module, lowering.example_inputs)
    torch.export.save(aten, file.with_suffix(".aten.pt2"))
    edge_files.save(to_edge(aten).exported_program(), file.with_suffix(".edge.pt2"))


def lower(lowering: Lowering, file: Path) -> None:
    """Lowers a model in a session of `executorch.export`."""
    import torch
    from executorch.export import ExportRecipe, LoweringRecipe, export

    torch.backends.mha.set_fastpath_enabled(False)  # sessions trace without gradients, and fused layers do not lower
    recipe = ExportRecipe(name=lowering.recipe, lowering_recipe=LoweringRecipe(partitioners=lowering.partitioners))
    session = export(model=lowering.module, example_inputs=[lowering.example_inputs], export_recipe=recipe)
    file.write_bytes(session.get_pte_buffer())


def main(zoo: str, folder: Path, *, apart: bool) -> None:
    """Lowers everything, paying for imports once."""
    for lowering in lowerings(zoo):
        file = folder / lowering.file
        file.parent.mkdir(parents=True, exist_ok=True)
        (save_programs if apart else lower)(lowering, file)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), apart="--apart" in sys.argv)
