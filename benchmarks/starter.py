"""The lowerings of the starter zoo, for programs that do them without pteforge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ZOO = Path(__file__).parents[1] / "examples" / "zoo" / "starter.yaml"

RECIPES = ("portable-fp32", "xnnpack-fp32")

BUILDERS = {
    "deep_autoencoder": "executorch.examples.models.mlperf_tiny:DeepAutoEncoderModel",
    "ds_cnn": "executorch.examples.models.mlperf_tiny:DSCNNKWSModel",
    "lstm": "executorch.examples.models.lstm:LSTMModel",
    "mobilenet_v1_025": "executorch.examples.models.mlperf_tiny:MobileNetV1025Model",
    "resnet8": "executorch.examples.models.mlperf_tiny:ResNet8Model",
    "sdpa": "executorch.examples.models.toy_model.model:SdpaModule",
}


@dataclass(frozen=True)
class Lowering:
    """One file to make.

    Attributes:
        model: name of the model.
        recipe: name of the recipe.
        file: path of the result in the output folder, the same as pteforge's.
        module: the eager module, in eval mode.
        example_inputs: positional arguments to trace with.
        partitioners: for delegation; None for the portable recipe.
    """

    model: str
    recipe: str
    file: Path
    module: Any
    example_inputs: tuple[Any, ...]
    partitioners: list[Any] | None


def lowerings() -> Iterator[Lowering]:
    """Every lowering of the zoo. Each builds its model again, as separate scripts would."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    for model, builder in BUILDERS.items():
        module_name, _, class_name = builder.partition(":")
        for recipe in RECIPES:
            made = getattr(import_module(module_name), class_name)()
            yield Lowering(
                model,
                recipe,
                Path(model) / f"{recipe}.pte",
                made.get_eager_model().eval(),
                made.get_example_inputs(),
                [XnnpackPartitioner()] if recipe == "xnnpack-fp32" else None,
            )
