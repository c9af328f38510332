"""A trained network with samples of its input, and how outputs score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """A module with samples of its input."""

    module: nn.Module
    samples: Sequence[tuple[Tensor, ...]]
    # what the task makes of the outputs for a sample, such as a class, a word or a pitch in Hz
    answer: Callable[[Sequence[Tensor]], Any]
    task: str  # in words, for the table
    wanted: Sequence[Any] | None = None  # the answers; None for the eager module's
    calibration: int = 8  # how many of the first samples quantizers observe; the others score

    def score(self, run: Callable[[tuple[Tensor, ...]], Sequence[Tensor]]) -> float:
        """The share of right answers; of pitches those within 50 cents, of vectors the mean cosine."""
        first = self.calibration
        wanted = self.wanted or [self.answer(self.eager(sample)) for sample in self.samples]
        scored = zip(self.samples[first:], wanted[first:], strict=True)
        rights = [right(self.answer(run(sample)), want) for sample, want in scored]
        return sum(rights) / len(rights)

    def eager(self, sample: tuple[Tensor, ...]) -> list[Tensor]:
        with torch.no_grad():
            return list(torch.utils._pytree.tree_leaves(self.module(*sample)))  # noqa: SLF001 - torch has no other


def right(found: Any, wanted: Any) -> float:
    """How right an answer is, at most 1."""
    if isinstance(wanted, Tensor):
        return float(nn.functional.cosine_similarity(found.flatten(), wanted.flatten(), dim=0))
    if isinstance(wanted, float):
        return float(found > 0 and abs(1200 * np.log2(found / wanted)) < 50)
    return float(found == wanted)


def folder_of(package: str) -> Path:
    """Where a package is, which is not imported: it may import, or download, what is not needed here."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0])


def of_onnx(path: Path, *shape: int) -> nn.Module:
    """The module of an ONNX file with one input of that shape."""
    import onnx
    from onnx2torch import convert

    model = onnx.load(path)
    nodes = [*model.graph.node]
    del model.graph.node[:]
    for node in nodes:  # onnx2torch takes no weights from nodes, and does not know all pooling
        if node.op_type == "Constant":
            value = model.graph.initializer.add()
            value.CopyFrom(node.attribute[0].t)
            value.name = node.output[0]
        elif node.op_type == "GlobalMaxPool":
            model.graph.node.append(onnx.helper.make_node("ReduceMax", node.input, node.output, axes=[-1]))
        else:
            model.graph.node.append(node)
    for dimension, size in zip(model.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
        dimension.dim_value = size
    del model.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    normalized = {node.input[0] for node in nodes if node.op_type == "BatchNormalization"}
    for value in inferred.graph.value_info:
        if value.name in normalized and not value.type.tensor_type.shape.dim:
            for _ in ("batch", "channel", "height", "width"):
                value.type.tensor_type.shape.dim.add()
    module: nn.Module = convert(inferred)
    return module
