"""Folds batch norms into the layers before them, whose weights take over their scale and shift."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from ..upstream import compat
from ..upstream.torch_export import set_constant

_ATEN = torch.ops.aten
_TRANSPOSED = (_ATEN.conv_transpose1d, _ATEN.conv_transpose2d, _ATEN.conv_transpose3d)
WITH_WEIGHTS = (_ATEN.linear, _ATEN.conv1d, _ATEN.conv2d, _ATEN.conv3d, *_TRANSPOSED)
"""Layers, with their weight and bias as second and third argument."""
_NORMS = (_ATEN.batch_norm.default, _ATEN._native_batch_norm_legit_no_training.default)  # noqa: SLF001 - its name


@dataclass(frozen=True)
class FoldableNorm:
    """A batch norm in evaluation mode, and the layer whose only user it is."""

    layer: Node
    norm: Node
    bias: Node  # the parameter that becomes the layer's bias: its own, or one of the norm's


def foldable_norms(program: ExportedProgram) -> Iterator[FoldableNorm]:
    """Yields the batch norms that `fold_batch_norms` folds, in the order of the graph.

    The weights of both must be constants of one floating dtype, and the layer's must not be used elsewhere. Norms in
    control flow are left alone, as are those after transposed convolutions in groups.
    """
    for norm in program.graph.nodes:
        if norm.target in _NORMS and (foldable := _foldable(program, norm)):
            yield foldable


def fold_batch_norms(program: ExportedProgram) -> None:
    """Folds in place, by `torch.nn.utils.fusion`, and drops parameters that become unused."""
    for foldable in list(foldable_norms(program)):
        _fold(program, foldable)
    program.graph_module.recompile()


def _foldable(program: ExportedProgram, norm: Node) -> FoldableNorm | None:
    of_norm = _arguments(norm)
    layer = of_norm["input"]
    # a norm with statistics among its outputs must have no user of them
    returns_one = norm.target is _NORMS[0] or [user.args[1:] for user in norm.users] == [(0,)]
    if of_norm.get("training") or not _is_layer(layer) or not returns_one:
        return None
    of_layer = _arguments(layer)
    optional = (of_layer["bias"], of_norm["weight"], of_norm["bias"])
    constants = [of_layer["weight"], of_norm["running_mean"], of_norm["running_var"], *filter(None, optional)]
    if not all(is_constant(program, node) for node in constants) or len(of_layer["weight"].users) > 1:
        return None
    dtypes = {node.meta["val"].dtype for node in (layer, layer.args[0], *constants)}
    if len(dtypes) > 1 or not dtypes.pop().is_floating_point or not _has_channels_second(layer, of_layer):
        return None
    biases = (of_layer["bias"], of_norm["bias"], of_norm["running_mean"])
    bias = next((node for node in biases if node is not None and len(node.users) == 1), None)
    return bias and FoldableNorm(layer, norm, bias)


def _is_layer(node: Node) -> bool:
    """Whether a node is a layer with weights, whose output has one user."""
    packet = getattr(node.target, "overloadpacket", None) if node.op == "call_function" else None
    return packet in (*WITH_WEIGHTS, _ATEN.convolution) and not node.kwargs and len(node.users) == 1


def _has_channels_second(layer: Node, arguments: dict[str, Any]) -> bool:
    """Whether rows of the weight are what the norm normalizes: not without a batch dimension, for instance."""
    weight = arguments["weight"].meta["val"]
    if _is_transposed(layer) and arguments["groups"] not in (None, 1):
        return False
    return bool(layer.meta["val"].dim() == weight.dim() and compat.is_non_overlapping_and_dense_or_false(weight))


def _fold(program: ExportedProgram, foldable: FoldableNorm) -> None:
    layer, norm = foldable.layer, foldable.norm
    of_layer, of_norm = _arguments(layer), _arguments(norm)
    nodes = (of_layer["weight"], of_layer["bias"], of_norm["running_mean"], of_norm["running_var"])
    weight, bias, mean, variance = (node and compat.get_param_tensor(program, node) for node in nodes)
    scale, shift = (node and compat.get_param_tensor(program, node) for node in (of_norm["weight"], of_norm["bias"]))
    scale = torch.ones_like(mean) if scale is None else scale
    shift = torch.zeros_like(mean) if shift is None else shift
    tensors: tuple[Any, ...] = (weight, bias, mean, variance, of_norm["eps"], scale, shift)
    with torch.no_grad():
        if layer.target.overloadpacket is _ATEN.linear:
            folded = fuse_linear_bn_weights(*tensors)
        else:
            folded = fuse_conv_bn_weights(*tensors, transpose=_is_transposed(layer))
    for node, tensor in zip((of_layer["weight"], foldable.bias), folded, strict=True):
        set_constant(program, node, tensor.detach())
    output = norm if norm.target is _NORMS[0] else next(iter(norm.users))
    layer.args = (*layer.args[:2], foldable.bias, *layer.args[3:])
    output.replace_all_uses_with(layer)
    program.graph_signature.replace_all_uses(output.name, layer.name)
    for node in dict.fromkeys((output, norm)):
        program.graph.erase_node(node)
    for node in dict.fromkeys((*nodes, of_norm["weight"], of_norm["bias"])):
        if node is not None and not node.users:
            compat.delete_constant_placeholder(program, node)


def _arguments(node: Node) -> dict[str, Any]:
    """The arguments of an operator by name; those that are left out are None."""
    names = [argument.name for argument in node.target._schema.arguments]  # noqa: SLF001 - torch has no public name for it
    return dict.fromkeys(names) | dict(zip(names, node.args, strict=False))


def _is_transposed(layer: Node) -> bool:
    return layer.target.overloadpacket in _TRANSPOSED or bool(_arguments(layer).get("transposed"))


def is_constant(program: ExportedProgram, node: Node) -> bool:
    """Whether a node is a parameter or buffer that the program does not change."""
    signature = program.graph_signature
    name = signature.inputs_to_parameters.get(node.name) or signature.inputs_to_buffers.get(node.name)
    return name is not None and name not in {spec.target for spec in signature.output_specs}
