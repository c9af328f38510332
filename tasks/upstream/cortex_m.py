"""ExecuTorch's backend for Cortex-M; in the keys of stages of the target `cortex_m`. Registers its operators."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
from executorch.backends.cortex_m.library import cmsis_nn
from executorch.backends.cortex_m.target_config import CortexM, CortexMTargetConfig
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import Quantizer
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from .compat import exir_ops
from .exir import Keeping
from .patches import mends

_TOSA = "tosa_serializer"
_MOST_DIMENSIONS = 4


class _Names(ModuleType):
    """A module that has every name, so that what only mentions them can be imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _Names(f"{self.__name__}.{name}"))
        return getattr(self, name)


@mends("without tosa-tools, which asks for an old numpy, the passes for Cortex-M cannot be imported")
@contextmanager
def names_of_tosa() -> Iterator[None]:
    """Has an empty module stand for `tosa_serializer` while the context is open, if that is not installed.

    For executorch 1.5.1. cortex_m/passes takes three passes from `executorch.backends.arm._passes`, whose others name
    operators of TOSA. None of the three does. Delete once they are apart.
    """
    if find_spec(_TOSA):
        yield
        return
    sys.modules[_TOSA] = _Names(_TOSA)
    try:
        yield
    finally:
        del sys.modules[_TOSA]


with names_of_tosa():
    # `cortex_m.ops.operators`, which it imports, cannot be the first: it needs a pass that needs its operators
    from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
    from executorch.backends.cortex_m.passes.explicit_layout_pass import ValidateCortexMExplicitLayoutPass
    from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer


class _Others:
    """Finds what another finder does, without some of it."""

    def __init__(self, finder: Any, left: Collection[Node]) -> None:
        self._finder = finder
        self._left = left

    def find_nodes(self, model: GraphModule) -> Iterator[Node]:
        return (node for node in self._finder.find_nodes(model) if node not in self._left)


class _Quantizer(CortexMQuantizer):  # type: ignore[misc]  # executorch is untyped here
    """Leaves operators alone that are annotated already, as others do, and `ComposableQuantizer` asks for."""

    def annotate(self, model: GraphModule) -> GraphModule:
        left = {node for node in model.graph.nodes if Q_ANNOTATION_KEY in node.meta}
        for quantizer in self.quantizers:
            if hasattr(quantizer, "node_finder"):
                quantizer.node_finder = _Others(quantizer.node_finder, left)
        annotated: GraphModule = super().annotate(model)
        return annotated


def make_quantizer() -> Quantizer:
    """The quantizer for programs that may have any memory format."""
    return _Quantizer(use_explicit_layout=True)


def kept_whole() -> Keeping:
    """What its passes know whole, where it is quantized: decomposed, it would be left to kernels for floating point.

    The operators are those of cortex_m/edge_compile_config.py. In floating point they have no portable kernels.
    """

    def is_quantized(node: Node) -> bool:
        around = [*node.args[:1], *(node.users if node.target is not torch.ops.aten.linear.default else ())]
        return any("quantize_per_" in str(getattr(near, "target", "")) for near in around)

    known = cortex_m_edge_compile_config().preserve_ops
    return Keeping([each for each in known if not each._schema.is_mutable], is_quantized)  # noqa: SLF001 - the only one


def for_cmsis_nn(program: ExportedProgram, cpu: str, isa: str | None) -> ExportedProgram:
    """An Edge program with operators of CMSIS-NN, and permutations where these need channels last.

    `ValidateCortexMExplicitLayoutPass` is left out: it raises for convolutions in floating point, too.
    """
    config = CortexMTargetConfig(CortexM[cpu.upper()], getattr(cmsis_nn.Backend, isa.upper()) if isa else None)
    passes = CortexMPassManager.explicit_layout_pass_list
    passes = [each for each in passes if each is not ValidateCortexMExplicitLayoutPass]
    rewritten: ExportedProgram = CortexMPassManager(program, passes, config).transform()
    for node in rewritten.graph.nodes:  # CMSIS-NN permutes up to four dimensions
        if node.target is exir_ops.edge.cortex_m.transpose.default and node.meta["val"].dim() > _MOST_DIMENSIONS:
            node.target = exir_ops.edge.aten.permute_copy.default
    rewritten.graph_module.recompile()
    return rewritten
