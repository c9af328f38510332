"""MLX's partitioner and compiler of executorch 1.5.1, with two defects worked around.

Import only after `mlx_serialization.make_importable`.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from executorch.backends.mlx.partitioner import MLXPartitioner
from executorch.backends.mlx.preprocess import MLXBackend


def mlx_partitioner() -> MLXPartitioner:
    """A partitioner for the edge stage, whose payloads do not depend on where the model's source is."""
    _drop_stack_traces()
    partitioner = MLXPartitioner()
    # It searches the call stack for `to_edge_transform_and_lower`, which decomposes no more than the partitioner allows
    # (backends/mlx/partitioner.py). Our edge stage does the same. Delete once there is an argument for it.
    partitioner._is_to_edge_transform_and_lower = lambda: True  # noqa: SLF001 - the only way to override it
    return partitioner


def _drop_stack_traces() -> None:
    """Removes stack traces from programs before they are compiled. Idempotent.

    Upstream names constants by a digest of the program's text, which includes paths and lines of the model's source
    (backends/mlx/preprocess.py). They mean nothing to a device, and stage keys leave them out. The program
    is preprocess's own copy. Delete once the digest leaves stack traces out.
    """
    preprocess = MLXBackend.preprocess
    if hasattr(preprocess, "__wrapped__"):
        return

    @wraps(preprocess)
    def call(edge_program: Any, compile_specs: Any) -> Any:
        for module in edge_program.graph_module.modules():
            for node in module.graph.nodes if hasattr(module, "graph") else ():
                node.meta.pop("stack_trace", None)
        return preprocess(edge_program, compile_specs)

    MLXBackend.preprocess = staticmethod(call)
