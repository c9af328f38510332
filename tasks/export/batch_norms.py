"""Folds batch norms into the layers before them, whose weights then carry their scale and shift."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from executorch.backends.transforms.utils import delete_constant_placeholder, get_param_tensor, set_param_tensor
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.export import ExportedProgram
from torch.fx import Node
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

_ATEN = torch.ops.aten
_TRANSPOSED = (_ATEN.conv_transpose1d, _ATEN.conv_transpose2d, _ATEN.conv_transpose3d)
_LAYERS = (_ATEN.conv1d, _ATEN.conv2d, _ATEN.conv3d, _ATEN.convolution, *_TRANSPOSED, _ATEN.linear)
_NORMS = (_ATEN.batch_norm.default, _ATEN._native_batch_norm_legit_no_training.default)  # noqa: SLF001 - its name


@dataclass(frozen=True)
class FoldableNorm:
    """A batch norm in evaluation mode, and the layer that nothing else takes the output of."""

    layer: Node
    norm: Node
    bias: Node  # the parameter that becomes the layer's bias: its own, or one of the norm's

    @property
    def output(self) -> Node:
        """The normalized value: the norm, or the first element of its tuple."""
        return self.norm if self.norm.target is _NORMS[0] else next(iter(self.norm.users))


def foldable_norms(program: ExportedProgram) -> Iterator[FoldableNorm]:
    """The batch norms of a program that `fold_batch_norms` folds, in the order of its graph.

    The weights of both must be constants of one floating dtype, and the layer's must not be used elsewhere. Norms in
    control flow are left alone, as are those after transposed convolutions in groups.
    """
    for norm in program.graph.nodes:
        if norm.target in _NORMS and (found := _foldable(program, norm)):
            yield found


def fold_batch_norms(program: ExportedProgram) -> None:
    """Folds in place, by `torch.nn.utils.fusion`, and drops parameters that nothing uses any more."""
    for found in list(foldable_norms(program)):
        _fold(program, found)
    program.graph_module.recompile()


def _foldable(program: ExportedProgram, norm: Node) -> FoldableNorm | None:
    own = _arguments(norm)
    layer = own["input"]
    if own.get("training") or not _is_layer(layer) or not _gives_one_tensor(norm):
        return None
    given = _arguments(layer)
    optional = (given["bias"], own["weight"], own["bias"])
    constants = [given["weight"], own["running_mean"], own["running_var"], *filter(None, optional)]
    if not all(is_constant(program, node) for node in constants) or len(given["weight"].users) > 1:
        return None
    if not _is_of_one_dtype([layer, layer.args[0], *constants]) or not _gives_channels_second(layer, given):
        return None
    biases = (given["bias"], own["bias"], own["running_mean"])
    bias = next((node for node in biases if node is not None and len(node.users) == 1), None)
    return bias and FoldableNorm(layer, norm, bias)


def _is_layer(node: Node) -> bool:
    """Whether a node is a layer with weights, whose output has one user."""
    known = node.op == "call_function" and getattr(node.target, "overloadpacket", None) in _LAYERS
    return known and not node.kwargs and len(node.users) == 1


def _is_of_one_dtype(nodes: list[Node]) -> bool:
    dtypes = {node.meta["val"].dtype for node in nodes}
    return len(dtypes) == 1 and dtypes.pop().is_floating_point


def _gives_channels_second(layer: Node, given: dict[str, Any]) -> bool:
    """Whether rows of the weight are what the norm normalizes: not without a batch dimension, for instance."""
    weight = given["weight"].meta["val"]
    if _is_transposed(layer) and given["groups"] not in (None, 1):
        return False
    return bool(layer.meta["val"].dim() == weight.dim() and is_non_overlapping_and_dense_or_false(weight))


def _fold(program: ExportedProgram, found: FoldableNorm) -> None:
    layer, own = found.layer, _arguments(found.norm)
    given = _arguments(layer)
    nodes = (given["weight"], given["bias"], own["running_mean"], own["running_var"])
    weight, bias, mean, variance = (node and get_param_tensor(program, node) for node in nodes)
    scale, shift = (node and get_param_tensor(program, node) for node in (own["weight"], own["bias"]))
    scale = torch.ones_like(mean) if scale is None else scale
    shift = torch.zeros_like(mean) if shift is None else shift
    tensors: tuple[Any, ...] = (weight, bias, mean, variance, own["eps"], scale, shift)
    with torch.no_grad():
        if layer.target.overloadpacket is _ATEN.linear:
            folded = fuse_linear_bn_weights(*tensors)
        else:
            folded = fuse_conv_bn_weights(*tensors, transpose=_is_transposed(layer))
    for node, tensor in zip((given["weight"], found.bias), folded, strict=True):
        set_param_tensor(program, node, tensor.detach())
    output = found.output
    layer.args = (*layer.args[:2], found.bias, *layer.args[3:])
    output.replace_all_uses_with(layer)
    program.graph_signature.replace_all_uses(output.name, layer.name)
    for node in dict.fromkeys((output, found.norm)):
        program.graph.erase_node(node)
    for node in dict.fromkeys((*nodes, own["weight"], own["bias"])):
        if node is not None and not node.users:
            delete_constant_placeholder(program, node)


def _arguments(node: Node) -> dict[str, Any]:
    """The arguments of an operator by name; those that are left out are None."""
    names = [argument.name for argument in node.target._schema.arguments]  # noqa: SLF001 - torch has no public name for it
    return dict.fromkeys(names) | dict(zip(names, node.args, strict=False))


def _gives_one_tensor(norm: Node) -> bool:
    """Whether only the normalized value is used, of a norm that also gives statistics."""
    return norm.target is _NORMS[0] or [user.args[1:] for user in norm.users] == [(0,)]


def _is_transposed(layer: Node) -> bool:
    return layer.target.overloadpacket in _TRANSPOSED or bool(_arguments(layer).get("transposed"))


def is_constant(program: ExportedProgram, node: Node) -> bool:
    """Whether a node is a parameter or buffer that the program does not change."""
    signature = program.graph_signature
    name = signature.inputs_to_parameters.get(node.name) or signature.inputs_to_buffers.get(node.name)
    return name is not None and name not in {spec.target for spec in signature.output_specs}
