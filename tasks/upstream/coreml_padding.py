"""Core ML's partitioner of executorch 1.5.1 takes circular padding, which its converter refuses.

`_OperatorsSupportedForCoreMLBackend` (backends/apple/coreml/partition/coreml_partitioner.py) asks for the operator, and
not for its mode ("Pad mode should be one of {'constant', 'reflect', 'replicate'}"). Here, such padding is decomposed.
Delete once the partitioner looks at the mode, or coremltools knows it.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from executorch.backends.apple.coreml.partition.coreml_partitioner import (
    _OperatorsSupportedForCoreMLBackend as _Support,
)
from executorch.exir.dialects._ops import ops
from torch.fx import Node

_upstream = _Support.should_override_support
_PADS = (torch.ops.aten.pad.default, ops.edge.aten.pad.default)


@wraps(_upstream)
def _unless_circular(support: Any, node: Node) -> bool:
    circular = node.target in _PADS and "circular" in (*node.args[2:3], node.kwargs.get("mode"))
    return circular or bool(_upstream(support, node))


def decompose_circular_padding() -> None:
    """Applies the patch, for the rest of the process. Idempotent."""
    _Support.should_override_support = _unless_circular
