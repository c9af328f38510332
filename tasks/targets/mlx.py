"""MLX: the GPUs of Apple silicon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

from .base import Target
from .mlx_serialization import make_importable, missing

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


@dataclass(frozen=True)
class Mlx(Target):
    """Inference by MLX on Macs with Apple silicon; what it does not support runs by the portable kernels.

    Payloads are made on any machine. The runtime in ExecuTorch's wheel has MLX on Apple silicon only.
    """

    name: ClassVar[str] = "mlx"
    backends: ClassVar[tuple[str, ...]] = ("MLXBackend",)

    @classmethod
    def available(cls) -> str | None:
        """The wheel has the compiler, and what its parts that are missing are made from."""
        return missing()

    def preserving(self) -> dict[str, Any]:
        """It has no options, and keeps operators that others decompose."""
        return {}

    def partitioners(self) -> Sequence[Partitioner]:
        """One MLX partitioner."""
        make_importable()
        from executorch.backends.mlx.partitioner import MLXPartitioner  # noqa: PLC0415 - workers only
        from executorch.backends.mlx.preprocess import MLXBackend  # noqa: PLC0415 - workers only

        if not hasattr(MLXBackend.preprocess, "__wrapped__"):
            MLXBackend.preprocess = staticmethod(_without_traces(MLXBackend.preprocess))
        partitioner = MLXPartitioner()
        # It looks on the stack for the function that decomposes no more than it allows; our edge stage does the same.
        partitioner._is_to_edge_transform_and_lower = lambda: True  # noqa: SLF001 - there is no other way to tell it
        return [partitioner]


def _without_traces(preprocess: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Upstream names constants after a digest of the program's text, and that has the paths and lines of its source.

    They have no meaning for a device, and stage keys leave them out. What is changed is preprocess's own copy.
    """

    @wraps(preprocess)
    def call(edge_program: Any, compile_specs: Any) -> Any:
        for module in edge_program.graph_module.modules():
            for node in module.graph.nodes if hasattr(module, "graph") else ():
                node.meta.pop("stack_trace", None)
        return preprocess(edge_program, compile_specs)

    return call
