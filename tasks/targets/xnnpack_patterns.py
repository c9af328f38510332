"""Keeps XNNPACK's passes of executorch 1.5.1 from tracing patterns that a graph cannot contain."""

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
"""In every pattern of bilinear upsampling."""

NEEDED_BY_SDPA = ops.edge.aten.any.dim
"""In every pattern of scaled dot product attention: a row of the mask without any value."""


def trace_patterns_where_needed() -> None:
    """Makes the two passes that look for traced patterns do so only in graphs with an operator that all of them have.

    The first use of the patterns in a process traces six small models, which takes 2.3 s of CPU time, and stages run
    in processes of their own. May be called again.
    """
    _look_only_with(NEEDED_BY_BILINEAR, ConvertToUpsampleBilinear2d, bilinear_2d, "get_graphs_dict")
    _look_only_with(NEEDED_BY_SDPA, ConvertToSDPAPass, sdpa, "get_graphs")


def _look_only_with(needed: Any, pass_: Any, patterns: Any, getter: str) -> None:
    look: Callable[[Any, torch.fx.GraphModule], PassResult] = pass_.call
    if hasattr(look, "__wrapped__"):
        return

    @wraps(look)
    def call(self: Any, graph_module: torch.fx.GraphModule) -> PassResult:
        if any(node.target is needed for node in graph_module.graph.nodes):
            return look(self, graph_module)
        traced = getattr(patterns, getter)
        setattr(patterns, getter, dict)  # no patterns, as a dictionary or as something to iterate
        try:
            return look(self, graph_module)
        finally:
            setattr(patterns, getter, traced)

    pass_.call = call
