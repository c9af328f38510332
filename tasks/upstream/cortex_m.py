"""ExecuTorch's backend for Cortex-M; in the keys of stages of the target `cortex_m`. Registers its operators."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from executorch.backends.cortex_m.library import cmsis_nn
from executorch.backends.cortex_m.target_config import CortexM, CortexMTargetConfig
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import Quantizer
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from .patches import mends

_TOSA = "tosa_serializer"


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


def for_cmsis_nn(program: ExportedProgram, cpu: str, isa: str | None) -> ExportedProgram:
    """An Edge program with operators of CMSIS-NN, and permutations where these need channels last.

    `ValidateCortexMExplicitLayoutPass` is left out: it raises for convolutions in floating point, too.
    """
    config = CortexMTargetConfig(CortexM[cpu.upper()], getattr(cmsis_nn.Backend, isa.upper()) if isa else None)
    passes = CortexMPassManager.explicit_layout_pass_list
    passes = [each for each in passes if each is not ValidateCortexMExplicitLayoutPass]
    made: ExportedProgram = CortexMPassManager(program, passes, config).transform()
    return made
