"""What the stages read that run the user's code: builders, transforms, datasets. All of it enters the stage's key."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .params import CallableParams, Params


class MethodParams(Params):
    """What it takes to build a model and export one of its methods.

    Attributes:
        source: key fields of the model's source (see `tasks.keys.source`): builder, code digests, versions, arguments.
        method: the method to export, None for the first one that the source defines.
        seed: seeds torch, numpy and random before the builder runs.
        strict: `torch.export.export(strict=...)`.
        dynamic_shapes: bounds from the zoo file that replace the builder's, per input and dimension, if any.
        host: CPU capability of the machine, since eager's figures depend on it.
    """

    source: dict[str, Any]
    method: str | None = None
    seed: int = 0
    strict: bool = False
    dynamic_shapes: Any = None
    host: str = ""


class ExportParams(MethodParams):
    """Parameters of `export`.

    Attributes:
        drawn_inputs: how many more inputs to draw, within the dynamic shapes' bounds, besides the examples.
    """

    drawn_inputs: int = 2


class TorchaoParams(Params):
    """One call of `torchao.quantization.quantize_`.

    Attributes:
        config: name of the config's class.
        fields: its fields, as JSON.
        include: patterns of names of the layers to quantize.
        exclude: patterns of names of those to leave alone.
        layers: kinds of layers, ``linear`` and ``embedding``.
    """

    config: str
    fields: dict[str, Any] = Field(default={})
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    layers: tuple[str, ...] = ("linear",)


class SourceTransformParams(MethodParams):
    """Parameters of `source_transform`.

    Attributes:
        transforms: what is done to the method's module, one after another.
    """

    transforms: tuple[TorchaoParams | CallableParams, ...]


class CalibrationParams(Params):
    """Parameters of `calibration`.

    Attributes:
        source: key fields of the dataset (see `tasks.keys.source`): its code, arguments and files.
        seed: seeds torch, numpy and random before the dataset is asked.
        samples: how many to take at most.
    """

    source: dict[str, Any]
    seed: int
    samples: int
