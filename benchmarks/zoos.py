"""Zoos whose lowerings programs do without pteforge, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Zoo:
    """A zoo file, and what it names.

    Attributes:
        file: the zoo file.
        builders: by name of the model.
        recipes: of every model, for the peer.
        files: names of the files that pteforge makes of every model: those of the recipes, or one fat file.
    """

    file: Path
    builders: Mapping[str, str]
    recipes: tuple[str, ...]
    files: tuple[str, ...]


STARTER = {
    "deep_autoencoder": "executorch.examples.models.mlperf_tiny:DeepAutoEncoderModel",
    "ds_cnn": "executorch.examples.models.mlperf_tiny:DSCNNKWSModel",
    "lstm": "executorch.examples.models.lstm:LSTMModel",
    "mobilenet_v1_025": "executorch.examples.models.mlperf_tiny:MobileNetV1025Model",
    "resnet8": "executorch.examples.models.mlperf_tiny:ResNet8Model",
    "sdpa": "executorch.examples.models.toy_model.model:SdpaModule",
}
PLAIN = ("portable-fp32", "xnnpack-fp32")
MID_SIZE = {name: f"networks:{name}" for name in ("distilbert", "gpt2", "resnet18", "vit")}
ZOOS = {
    "starter": Zoo(HERE.parent / "examples" / "zoo" / "starter.yaml", STARTER, PLAIN, PLAIN),
    "four-targets": Zoo(HERE / "four_targets.yaml", STARTER, (*PLAIN, "vulkan-fp32", "mlx-fp32"), ("fat",)),
    "mid-size": Zoo(HERE / "mid_size.yaml", MID_SIZE, ("xnnpack-fp32",), ("xnnpack-fp32",)),
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
        partitioners: for delegation, as the target of the recipe has them; None for the portable one.
    """

    model: str
    recipe: str
    file: Path
    module: Any
    example_inputs: tuple[Any, ...]
    partitioners: Sequence[Any] | None


def lowerings(zoo: str) -> Iterator[Lowering]:
    """Every lowering of a zoo. Each builds its model again, as separate scripts would."""
    from pteforge.tasks.targets.find import find_target

    for model, builder in ZOOS[zoo].builders.items():
        for recipe in ZOOS[zoo].recipes:
            module, example_inputs = _build(builder)
            yield Lowering(
                model,
                recipe,
                Path(model) / f"{recipe}.pte",
                module.eval(),
                example_inputs,
                find_target(recipe.removesuffix("-fp32")).partitioners() or None,
            )


def _build(builder: str) -> tuple[Any, tuple[Any, ...]]:
    """The module and example inputs, of a function or of one of ExecuTorch's classes of models."""
    module_name, _, name = builder.partition(":")
    made = getattr(import_module(module_name), name)()
    return made if isinstance(made, tuple) else (made.get_eager_model(), made.get_example_inputs())
