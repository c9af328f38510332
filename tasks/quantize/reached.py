"""What quantization reached of a program's weights, and why it left the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ..engine.stage import CallableParams
from ..export.eager import written_buffers
from ..results.quantization import LeftWeight, Quantization
from ..targets import TargetParams
from ..upstream.compat import HigherOrderOperator
from ..usercode.recipe_functions import node_filter
from .linear_layers import SWAPS, TRANSPOSED
from .pt2e import is_inside
from .torchao_configs import TorchaoParams

_ATEN = torch.ops.aten
_QUANTIZE = "quantized_decomposed.quantize"
_DEQUANTIZE_AFFINE = "torchao.dequantize_affine"
_LOOKUPS = (_ATEN.embedding.default, _ATEN.embedding_bag.default, _ATEN.embedding_bag.padding_idx)
_TRANSPOSED = (_ATEN.conv_transpose1d.default, _ATEN.conv_transpose2d.input, _ATEN.conv_transpose3d.input)
_EMBEDDINGS = "xnnpack-int8-dynamic-embedding-int8"
_TAKEN = (_ATEN.linear.default, _ATEN.conv1d.default, _ATEN.conv2d.default, _ATEN.conv3d.default, *_TRANSPOSED)


@dataclass(frozen=True, slots=True)
class Asked:
    """How a recipe quantizes a method: by quantizers, or by torchao's transforms and the layers that they must keep."""

    quantizers: Sequence[TargetParams] = ()
    filters: Mapping[int, CallableParams] = field(default_factory=dict)
    exclude: Collection[str] = ()
    transforms: Sequence[TorchaoParams] = ()
    kept: Collection[str] = ()


def quantization_of(program: ExportedProgram, original: ExportedProgram, asked: Asked) -> Quantization:
    """How many weights of a quantized program are integers, and which are not; `original` names operators' modules."""
    signature, state = program.graph_signature, written_buffers(program)
    sizes: dict[str, int] = {}
    left, total, quantized = [], 0, 0
    for node, name in _weights(program):
        value, operators = node.meta["val"], {_operator(user): user for user in node.users}
        if name in state or not operators or all(map(partial(_scales, node), node.users)):
            continue
        integer = value.dtype in (torch.int8, torch.uint8) or all(_QUANTIZE in operator for operator in operators)
        if not (integer or (value.is_floating_point() and node.name in signature.inputs_to_parameters)):
            continue  # tables and positions
        dtype, bits = _dtype(value, operators.values())
        sizes[dtype] = sizes.get(dtype, 0) + value.numel() * bits // 8
        total += value.numel()
        quantized += value.numel() * integer
        if not integer:
            why = why_left(original, name, operators, asked)
            left.append(LeftWeight(name, tuple(sorted(operators)), value.numel(), why))
    left.sort(key=lambda weight: (-weight.elements, weight.name))
    return Quantization(dict(sorted(sizes.items())), total, quantized, tuple(left))


def _weights(program: ExportedProgram) -> Iterator[tuple[Node, str]]:
    """Inputs of a program that are parameters or buffers of two dimensions or more, with their names."""
    names = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name in names and isinstance(value, torch.Tensor) and value.dim() >= 2:
            yield node, names[node.name]


def _scales(node: Node, user: Node) -> bool:
    """Whether an operator dequantizes something else, with a value as its scale or zero point."""
    return "dequantize" in str(user.target) and user.args[0] is not node


def _dtype(value: torch.Tensor, users: Iterable[Node]) -> tuple[str, int]:
    """The data type of a weight and its bits: integers that torchao keeps in a byte each may have fewer in a file."""
    for user in users:
        if str(user.target).startswith(_DEQUANTIZE_AFFINE) and user.args[5] is not None:
            bits = (int(user.args[6]) - int(user.args[5])).bit_length()
            return f"int{bits}", bits
    return str(value.dtype).removeprefix("torch."), 8 * value.itemsize


def why_left(original: ExportedProgram, name: str, operators: Collection[str], asked: Asked) -> str:
    """Why operators take a weight in floating point."""
    named = {other: node for node, other in _weights(original)}
    named |= {f"{TRANSPOSED}{other.replace('.', '_')}": node for other, node in named.items()}
    weight = named.get(name)
    users = list(_takers(weight)) if weight else []
    users = [user for user in users if _operator(user) in operators] or users
    explain = _why_untransformed if asked.transforms else _why
    reasons = [explain(weight, user, name, asked) for user in users if weight]
    return "; ".join(dict.fromkeys(reasons)) or _unknown(operators, asked)


def _takers(node: Node) -> Iterator[Node]:
    """The operators that take a value, or take it transposed."""
    for user in node.users:
        if user.target in SWAPS:
            yield from _takers(user)
        else:
            yield user


def _why(weight: Node, user: Node, name: str, asked: Asked) -> str:
    del name
    dtype = weight.meta["val"].dtype
    if is_inside(user, asked.exclude):
        return "`quantize.exclude` leaves it out"
    filters = [node_filter(function, position) for position, function in asked.filters.items()]
    if 0 < len(filters) == len(asked.quantizers) and not any(takes(user) for takes in filters):
        return "`filter_fn` leaves it out"
    if isinstance(user.target, HigherOrderOperator):
        return "quantizers do not look into branches and loops"
    if user.target in _LOOKUPS:
        return f"quantizers leave tables of embeddings; the `source_transforms` of {_EMBEDDINGS} take them"
    if dtype is not torch.float32:
        return f"quantizers take float32, and it is {str(dtype).removeprefix('torch.')}"
    return _why_not_xnnpack(weight, user, asked) or _unknown([_operator(user)], asked)


def _why_untransformed(weight: Node, user: Node, name: str, asked: Asked) -> str:
    """Why torchao's transforms left a weight."""
    del weight
    layer = name.rpartition(".")[0]
    kind = "embedding" if user.target in _LOOKUPS else "linear" if user.target is _ATEN.linear.default else ""
    chosen = [transform for transform in asked.transforms if transform.filter_fn or kind in transform.layers]
    named = [transform for transform in chosen if transform.filter_fn or _matches(layer, transform.include)]
    if not kind:
        return "torchao takes linear layers and embeddings only"
    if layer in asked.kept:
        return "the model also uses it in another way than layers do"
    if not named:
        return "no transform's `filter` matches it" if chosen else f"no transform has `layers: [{kind}]`"
    if all(transform.filter_fn or _matches(layer, transform.exclude) for transform in named):
        return "a transform's `filter_fn` or `exclude` leaves it out"
    return "torchao takes layers of their own only, and this is part of another one"


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _why_not_xnnpack(weight: Node, user: Node, asked: Asked) -> str:
    """What XNNPACK does not have, or the options of its quantizer leave out; empty if it is something else."""
    options = [quantizer.options for quantizer in asked.quantizers if quantizer.name == "xnnpack"]
    if user.target not in _TAKEN or len(options) < len(asked.quantizers):
        return ""
    shape, dynamic = weight.meta["val"].shape, all(each.get("dynamic") for each in options)
    groups = user.args[6] if len(user.args) > 6 else 1
    if len(shape) == 5:
        return "XNNPACK has no convolutions in three dimensions"
    if user.target in _TRANSPOSED and groups != 1:
        return "XNNPACK has no quantized transposed convolutions with groups"
    if dynamic and user.target in (_ATEN.conv1d.default, _ATEN.conv2d.default) and shape[1] == 1:
        return "XNNPACK computes scales at run time for no convolution with one input channel in a group"
    ruled = any(each.get("only_rules") or each.get("rules") for each in options)
    return "the quantizer's `rules` leave it out" if ruled else ""


def _unknown(operators: Collection[str], asked: Asked) -> str:
    names = " and ".join(dict.fromkeys(quantizer.name for quantizer in asked.quantizers))
    return f"the quantizer of {names} does not take {', '.join(sorted(operators))}"


def _operator(node: Node) -> str:
    return str(node.target).removesuffix(".default")
