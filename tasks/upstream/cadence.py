"""Cadence's backend of ExecuTorch 1.5.1; in the keys of stages of the target `cadence`."""

from __future__ import annotations

import typing
from typing import Any

from typing_extensions import override

from .patches import mends


@mends("before Python 3.12, the passes for Cadence's DSPs cannot be imported", releases="<=1.5.1")
def override_of_typing() -> None:
    """Adds `override` to `typing` before Python 3.12, which cadence/aot/fuse_ops.py imports from there.

    A decorator that says what it says to type checkers only. Delete with Python 3.11, or once that file imports it from
    `typing_extensions`.
    """
    if not hasattr(typing, "override"):
        setattr(typing, "override", override)  # noqa: B010 - type checkers for later versions know it


@mends("the quantizer for Cadence's DSPs finds nothing in programs of `torch.export`", releases="<=1.5.1")
def name_sources(module: Any) -> None:
    """Gives operators a `source_fn_stack`, which only programs have that are exported with ``strict=True``.

    `get_aten_node_target_partitions` of cadence/aot/quantizer/utils.py passes over operators without one, and groups
    the others by it, but compares their targets. Delete once it does without.
    """
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.meta.setdefault("source_fn_stack", [(node.name, node.target)])
