"""XNNPACK's quantizer of executorch 1.5.1, extended to padding with zeros and to more convolutions with dynamic scales.

XNNPACK pads integers only if they keep their scale. The quantizer gives the scale of a value to what reshapes it, cuts
it or takes its maxima (`_is_share_obs_or_fq_op` in backends/xnnpack/quantizer/xnnpack_quantizer_utils.py), but not to
what pads it. Between two quantized layers, a ``pad`` then has two scales, and the file cannot be loaded ("Failed to
create StaticConstantPad node"). Zeros are in the range of every scale, so that nothing is lost. Delete once upstream's
list has ``pad``.

With scales that are computed at run time, it takes convolutions in two dimensions, unless a ReLU follows (it looks for
both together, which it does for fixed scales only), and none in one dimension, which XNNPACK computes as such with a
height of one. Delete each part once `test_dynamic_convolutions` passes without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer_utils import is_relu_node, propagate_annotation
from torch.fx import Graph, GraphModule, Node
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, SharedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from ..programs.products import call_operator
from ..programs.recurrent import STEPS

_ATEN = torch.ops.aten
_IN_ONE_DIMENSION = {  # the operator for two dimensions, and by position of an argument its value for the height
    _ATEN.conv1d.default: (_ATEN.conv2d.default, {3: 1, 4: 0, 5: 1}),
    _ATEN.conv_transpose1d.default: (_ATEN.conv_transpose2d.input, {3: 1, 4: 0, 5: 0, 7: 1}),
}
_GROUPS = 6  # the position of this argument of transposed convolutions
_CONVOLUTIONS = (_ATEN.conv2d.default, _ATEN.conv_transpose2d.input)
_PADS = (torch.ops.aten.pad.default, torch.ops.aten.constant_pad_nd.default)


class ExtendedXnnpackQuantizer(XNNPACKQuantizer):  # type: ignore[misc]  # executorch is untyped here
    """Padding with zeros keeps the scale of what is padded."""

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """As upstream, and convolutions in one dimension become such in two, if their scales are dynamic."""
        configs = (self.global_config, *self.operator_type_config.values(), *self.module_type_config.values())
        configs += (*self.module_name_config.values(),)
        if all(_is_dynamic(config) for config in configs if config is not None):
            for node in list(model.graph.nodes):
                if node.target in _IN_ONE_DIMENSION and _is_taken(node):
                    _write_in_two_dimensions(model.graph, node)
        return super().transform_for_annotation(model)

    def _annotate_all_patterns(self, model: GraphModule, config: Any, *args: Any, **kwargs: Any) -> GraphModule:
        """As upstream, where an activation that follows a convolution with dynamic scales is an operator of its own."""
        with _apart_from_activations(model) if _is_dynamic(config) else nullcontext():
            return super()._annotate_all_patterns(model, config, *args, **kwargs)

    def annotate(self, model: GraphModule) -> GraphModule:
        """As upstream, and then what pads, and what comes after that."""
        model = super().annotate(model)
        _share_scales_of_steps(model)
        padded = False
        for node in model.graph.nodes:
            if node.target in _PADS and _pads_with_zeros(node):
                padded |= _keep_scale(node)
        if padded:
            propagate_annotation(model)
        return model


def _is_dynamic(config: Any) -> bool:
    return bool(config and config.input_activation and config.input_activation.is_dynamic)


@contextmanager
def _apart_from_activations(model: GraphModule) -> Iterator[None]:
    """Puts a node between each convolution and the ReLU that follows it, which quantizers then do not see together."""
    placed = []
    for node in list(model.graph.nodes):
        if is_relu_node(node) and isinstance(node.args[0], Node) and node.args[0].target in _CONVOLUTIONS:
            with model.graph.inserting_before(node):
                placed.append(model.graph.call_function(_ATEN.alias.default, (node.args[0],)))
            node.replace_input_with(node.args[0], placed[-1])
    try:
        yield
    finally:
        for node in placed:
            node.replace_all_uses_with(node.args[0])
            model.graph.erase_node(node)


def _is_taken(node: Node) -> bool:
    """Whether XNNPACK has the convolution with dynamic scales: no depthwise one, and no transposed one with groups."""
    if node.target is _ATEN.conv1d.default:
        return int(node.args[1].meta["val"].shape[1]) != 1
    return len(node.args) <= _GROUPS or node.args[_GROUPS] == 1


def _write_in_two_dimensions(graph: Graph, node: Node) -> None:
    """Replaces a convolution by one of images with a height of one."""
    operator, neutral = _IN_ONE_DIMENSION[node.target]
    rest = list(node.args[2:])
    for position, size in neutral.items():
        if len(node.args) > position:
            rest[position - 2] = [size, *rest[position - 2]]
    with graph.inserting_before(node):
        images, kernels = (call_operator(graph, _ATEN.unsqueeze.default, value, 2) for value in node.args[:2])
        made = graph.call_function(operator, (images, kernels, *rest))
        result = graph.call_function(_ATEN.squeeze.dim, (made, 2))
    made.meta = {**node.meta, "val": node.meta["val"].unsqueeze(2)}
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _share_scales_of_steps(model: GraphModule) -> None:
    """Gives all steps of a recurrent layer the scales of its first, which observe all of them.

    XNNPACK has a bias of integers for each pair of scales, so a file would have one for each step.
    """
    firsts: dict[str, Node] = {}
    for node in model.graph.nodes:
        annotation = node.meta.get(Q_ANNOTATION_KEY)
        if STEPS not in node.meta or annotation is None or annotation.output_qspec is None:
            continue
        first = firsts.setdefault(node.meta[STEPS], node)
        if first is not node:
            annotation.input_qspec_map[node.args[0]] = SharedQuantizationSpec((first.args[0], first))
            annotation.output_qspec = SharedQuantizationSpec(first)


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
