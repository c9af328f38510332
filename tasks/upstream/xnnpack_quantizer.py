"""XNNPACK's quantizer of executorch 1.5.1, extended to padding with zeros.

XNNPACK pads integers only if they keep their scale. The quantizer gives the scale of a value to what reshapes it, cuts
it or takes its maxima (`_is_share_obs_or_fq_op` in backends/xnnpack/quantizer/xnnpack_quantizer_utils.py), but not to
what pads it. Between two quantized layers, a ``pad`` then has two scales, and the file cannot be loaded ("Failed to
create StaticConstantPad node"). Zeros are in the range of every scale, so that nothing is lost. Delete once upstream's
list has ``pad``.
"""

from __future__ import annotations

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer_utils import propagate_annotation
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, SharedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

_PADS = (torch.ops.aten.pad.default, torch.ops.aten.constant_pad_nd.default)


class ExtendedXnnpackQuantizer(XNNPACKQuantizer):  # type: ignore[misc]  # executorch is untyped here
    """Padding with zeros keeps the scale of what is padded."""

    def annotate(self, model: GraphModule) -> GraphModule:
        """As upstream, and then what pads, and what comes after that."""
        model = super().annotate(model)
        padded = False
        for node in model.graph.nodes:
            if node.target in _PADS and _pads_with_zeros(node):
                padded |= _keep_scale(node)
        if padded:
            propagate_annotation(model)
        return model


def _pads_with_zeros(node: Node) -> bool:
    rest = list(node.args[2:])
    if node.target is _PADS[0]:
        mode = rest.pop(0) if rest else "constant"
        if mode != "constant":
            return False
    return not rest or rest[0] in (None, 0)


def _keep_scale(node: Node) -> bool:
    """Gives a value's scale to the node that pads it; says whether the value has one."""
    value = node.args[0]
    annotation = value.meta.get(Q_ANNOTATION_KEY) if isinstance(value, Node) else None
    if annotation is None or annotation.output_qspec is None or Q_ANNOTATION_KEY in node.meta:
        return False
    shared = SharedQuantizationSpec(value)
    node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(
        input_qspec_map={value: shared}, output_qspec=shared, _annotated=True
    )
    return True
