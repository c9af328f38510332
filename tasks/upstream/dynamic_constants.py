"""Constants that are quantized dynamically: torchao 0.18 folds a part of what quantizes them.

`convert_pt2e` computes what the ``quantize`` operators of constants return, such as the queries of DETR, which
begin with zeros. Where scale and zero point are computed by the program, the file still computes those, and dequantizes
by them what was quantized by others: for zeros, the portable kernel's differ from torch's (-52 dB). Besides, the rest
is no pattern that backends know, so that the layer is left to the portable kernels in floating point. With this patch,
only what has a constant scale is folded. Delete once `_quant_node_constraint` in torchao's
quantization/pt2e/quantize_pt2e.py checks it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from torch.fx import Node
from torchao.quantization.pt2e import quantize_pt2e

_upstream = quantize_pt2e._quant_node_constraint  # noqa: SLF001 - the function that decides what is folded


def _is_folded(node: Node) -> bool:
    """Whether an operator quantizes, and by a scale and a zero point that are constants."""
    return _upstream(node) and all(given.op == "get_attr" for given in node.all_input_nodes[1:])


@contextlib.contextmanager
def whole_dynamic_quantization() -> Iterator[None]:
    """Applies the patch to `convert_pt2e` while the context is open."""
    with mock.patch.object(quantize_pt2e, "_quant_node_constraint", _is_folded):
        yield
