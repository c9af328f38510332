"""XNNPACK's passes of executorch 1.5.1 trace patterns that a graph cannot contain; with this patch they do not.

The first use of the patterns in a process traces six small models, which takes 2.3 s of CPU time, and each stage runs
in a process of its own. Delete once `get_graphs` in backends/xnnpack/partition/graphs/ traces on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from executorch.backends.xnnpack._passes.convert_to_sdpa import ConvertToSDPAPass
from executorch.backends.xnnpack._passes.convert_to_upsample_bilinear2d import ConvertToUpsampleBilinear2d
from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa
from executorch.exir.dialects._ops import ops
from torch.fx.passes.infra.pass_base import PassResult

NEEDED_BY_BILINEAR = ops.edge.aten.upsample_bilinear2d.vec
"""Every pattern of bilinear upsampling has this operator."""

NEEDED_BY_SDPA = ops.edge.aten.any.dim
"""Every pattern of scaled dot product attention has this operator: it finds rows of the mask without a value."""


def prune_xnnpack_patterns() -> None:
    """Makes the two matching passes skip graphs without an operator that all of their patterns have. Idempotent."""
    _match_only_with(NEEDED_BY_BILINEAR, ConvertToUpsampleBilinear2d, bilinear_2d, "get_graphs_dict")
    _match_only_with(NEEDED_BY_SDPA, ConvertToSDPAPass, sdpa, "get_graphs")


def _match_only_with(needed: Any, pass_: Any, patterns: Any, getter: str) -> None:
    match: Callable[[Any, torch.fx.GraphModule], PassResult] = pass_.call
    if hasattr(match, "__wrapped__"):
        return

    @wraps(match)
    def call(self: Any, graph_module: torch.fx.GraphModule) -> PassResult:
        if any(node.target is needed for node in graph_module.graph.nodes):
            return match(self, graph_module)
        traced = getattr(patterns, getter)
        setattr(patterns, getter, dict)  # no patterns, both for callers that index and for those that iterate
        try:
            return match(self, graph_module)
        finally:
            setattr(patterns, getter, traced)

    pass_.call = call
