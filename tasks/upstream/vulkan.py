"""What GPU runtimes of executorch 1.5.1 lack or compute wrongly, although upstream's partitioners claim it.

Part of the keys of the stages of Vulkan and WebGPU. All cases were run with ExecuTorch's Vulkan delegate of August 2026
on Mesa's lavapipe 22.3, and a hundred of them on lavapipe 25.0 and on an NVIDIA H200, with the same verdicts. Limits of
WebGPU were seen on Dawn, or follow from Vulkan's. Delete a limit once its case is right there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial, wraps
from math import inf
from operator import getitem
from typing import Any
from unittest.mock import patch

import torch
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.exir.backend.partitioner import PartitionResult
from executorch.exir.pass_base import ExportPass
from torch.export import ExportedProgram
from torch.fx import Node

from . import compat
from .exir import KEPT, exclude_from_partitions
from .patches import holds, is_off, mends


@dataclass(frozen=True)
class Facts:
    """Known properties of the values of a program."""

    constants: Collection[Node]  # placeholders of weights and of buffers that nothing changes
    largest: Mapping[Node, float]  # the largest absolute value of integers
    is_finite: Callable[[Node], bool]  # whether a placeholder is a constant without masks


@dataclass(frozen=True)
class Limit:
    """Calls that are left to the CPU."""

    operators: Collection[str]  # names in the edge dialect, without `aten.`; empty for all
    is_beyond: Callable[[Node, Facts], bool]
    why: str  # with the smallest case
    releases: str = ">=1.4"  # of ExecuTorch, that it applies to; bound them once its probe finds it needless


def _name(node: Node) -> str:
    return str(getattr(node.target, "name", lambda: "")()).replace("::", ".").removeprefix("aten.")


def _value(node: Any) -> Any:
    return node.meta.get("val")


def _tensors(node: Node) -> Iterator[torch.Tensor]:
    """Inputs and results of a call."""
    for value in (node, *node.all_input_nodes):
        yield from filter(torch.is_tensor, compat.pytree.tree_leaves(_value(value)))


def _always(*_: object) -> bool:
    return True


def _is_dynamic(node: Node, _: Facts | None = None) -> bool:
    return any(_symbols(*tensor.shape) for tensor in _tensors(node))


def _symbols(*sizes: Any) -> bool:
    return any(not isinstance(size, int) for size in sizes)


def _is_odd_line(node: Node, _: Facts) -> bool:
    """Whether a convolution along lines is pointwise with steps or padding, or of dynamic length and not depthwise."""
    lines, weight = _value(node.args[0]), _value(node.args[1])
    if lines.dim() != 3:
        return False
    if weight.shape[2] == 1:
        return [*compat.pytree.tree_leaves(node.args[3]), *compat.pytree.tree_leaves(node.args[4])] != [1, 0]
    return _symbols(lines.shape[2]) and not node.args[8] == lines.shape[1] == weight.shape[0]


def _is_of_no_images(node: Node, _: Facts) -> bool:
    """Whether a norm is of other than images, or of a dynamic number of them in groups."""
    value = _value(node.args[0])
    return value.dim() != 4 or (_name(node) == "native_group_norm" and _symbols(value.shape[0]))


def _is_odd_resize(node: Node, _: Facts) -> bool:
    """Whether an upsampling is from dynamic sizes, by a broken factor, or to a size that the shader does not meet."""
    before, after = (list(_value(value).shape[2:]) for value in (node.args[0], node))
    if _symbols(*before):
        return node.args[1] is not None
    factors = compat.pytree.tree_leaves(node.args[-1])
    if node.args[1] is None and [old * factor for old, factor in zip(before, factors, strict=True)] != after:
        return True
    if "bilinear" in _name(node):
        return bool(node.args[2]) and 1 in after
    return any(new % old and old != 2 * new for old, new in zip(before, after, strict=True))


def _is_squeezed(node: Node, _: Facts) -> bool:
    """Whether an operator that upstream squeezes has dynamic sizes, which upstream cannot write."""
    shape = [size if isinstance(size, int) else 2 for size in _value(node).shape]
    return _is_dynamic(node) and compat.SqueezeUnsqueezeInputs().should_squeeze(None, shape)


_INDICES = {"embedding": 1, "index_select": 2, "gather": 2}  # position of what has to be int64
_MOST_ELEMENTS = 1 << 27  # of a tensor: upstream's `DEFAULT_BUFFER_LIMIT`


def _holds_int64(node: Node, facts: Facts) -> bool:
    """Whether values may not fit 32 bits, other than as an index or a constant."""
    index = node.args[_INDICES[name]] if (name := _name(node)) in _INDICES else None
    inputs = [value for value in node.all_input_nodes if value is not index and value not in facts.constants]
    return any(facts.largest.get(value, 0) >= 1 << 31 and torch.int64 in _dtypes(value) for value in (*inputs, node))


def _dtypes(node: Node) -> set[torch.dtype]:
    return {leaf.dtype for leaf in compat.pytree.tree_leaves(_value(node)) if torch.is_tensor(leaf)}


def _is_in_groups(node: Node, _: Facts) -> bool:
    """Whether groups are other than depthwise, whole texels of images, or along lines; pointwise shaders have none."""
    images, weight = _value(node.args[0]), _value(node.args[1])
    transposed, groups = node.args[6], node.args[8]
    if groups == 1:
        return False
    if images.dim() == 3:
        return bool(weight.shape[2] == 1)
    if transposed or groups == images.shape[1] == weight.shape[0]:
        return bool(transposed)
    whole = images.shape[1] % (4 * groups) == 0 == weight.shape[0] % (4 * groups)  # texels hold 4 channels
    return not whole or tuple(weight.shape[2:]) == (1, 1)


def _is_odd_depthwise(node: Node, _: Facts) -> bool:
    """Whether a depthwise convolution of images needs the general shader, and that is wrong.

    It takes equal strides and dilations only, and is wrong at the edges of padding unless a kernel is one line.
    """
    kernel = list(_value(node.args[1]).shape[2:])
    stride, padding, dilation = (list(compat.pytree.tree_leaves(argument)) for argument in node.args[3:6])
    if node.args[8] == 1 or len(kernel) != 2 or kernel in ([3, 3], [5, 5]):
        return False
    return stride != dilation or (any(padding) and min(kernel) > 1)


def _is_over_outer_dims(node: Node, _: Facts) -> bool:
    """Whether a reduction or a softmax is over images, over channels of several images, or of no dimensions."""
    value, dims = _value(node.args[0]), node.args[1]
    if not value.dim():
        return True
    reduced = {dim % value.dim() for dim in compat.pytree.tree_leaves(dims) if dim is not None}
    return bool(value.dim() == 4 and (0 in reduced or (1 in reduced and value.shape[0] != 1)))


_WIDEST = 16384  # texels, of an image
_EXPONENTS = (2, 3, 0.5, -0.5)  # which are written out

_WEIGHTS = {
    "convolution": (1, 2),
    "native_layer_norm": (2, 3),
    "native_group_norm": (1, 2),
    "_native_batch_norm_legit_no_training": (1, 2, 3, 4),
}
"""Positions of the arguments that the runtime lays out when it loads a payload."""


def _computes_weights(node: Node, facts: Facts) -> bool:
    arguments = (node.args[position] for position in _WEIGHTS[_name(node)])
    return any(value not in facts.constants for value in arguments if isinstance(value, Node))


def _becomes_computed_weight(node: Node, facts: Facts) -> bool:
    """Whether upstream makes a linear layer of a transposition and a product whose weight or bias is no constant."""
    products = (user for user in node.users if _name(user) in ("mm", "addmm") and user.args[-1] is node)
    return any(value not in facts.constants for product in products for value in (node.args[0], *product.args[:-2]))


_LOSES_NAN = ("clamp", "hardtanh", "minimum", "relu", "tanh")


def _loses_nan(node: Node, _: Facts) -> bool:
    """Whether NaN would be lost: what keeps it, see `_CLAMPS`, takes 1 to 4 dimensions, and would throw."""
    operands = map(_value, node.all_input_nodes)
    return any(x.is_floating_point() and not 1 <= x.dim() <= 4 for x in operands if torch.is_tensor(x))


_QUANTIZE = "quantized_decomposed.quantize_per_tensor"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor"

_OF_BOTH = {
    "contiguous_values": Limit(
        [],
        lambda node, _: any(list(tensor.dim_order()) != sorted(tensor.dim_order()) for tensor in _tensors(node)),
        "channels-last values are misread: `relu(x).to(channels_last)` -1.9 dB",
    ),
    "integers_of_32_bits": Limit([], _holds_int64, "64-bit integers are computed in 32 bits: `x + 1` at 2 ** 40"),
    "results_of_dynamic_sizes": Limit(
        ["split_with_sizes_copy", "squeeze_copy.dims", "index_select"],
        _is_dynamic,
        "results keep the largest of dynamic sizes: a Llama block 23.9 dB, 138 without it; `x.squeeze(0)`",
    ),
    "squeezed_tensors": Limit(
        ["relu", "gelu"],
        _is_squeezed,
        "upstream cannot write dynamic sizes of tensors that it squeezes: `relu(x)` of [batch, 1, 8]",
    ),
    "rounded_quotients": Limit(
        ["div.Tensor_mode"],
        lambda node, _: node.kwargs.get("rounding_mode") != "trunc" or _value(node).is_floating_point(),
        "`x // 3` of negative integers rounds up: 20 dB; the rounded quotient of numbers rounds down: 3.0 // 0.3 is 10",
    ),
    "nan_of_odd_dimensions": Limit(
        _LOSES_NAN, _loses_nan, "NaN is lost: `relu(x)` of no dimensions, `minimum(x, y)` of five"
    ),
    "equality": Limit(
        ["eq.Tensor"], _always, "numbers within 1e-5 are taken for equal; for integers the runtime throws: `x == y`"
    ),
    "general_powers": Limit(
        ["pow.Tensor_Tensor", "pow.Tensor_Scalar"],
        lambda node, _: node.args[1] not in _EXPONENTS or (node.args[1] not in (2, 3) and _value(node).dim() > 4),
        "`x ** y` of negative numbers is NaN, `x ** -1` of 0 is 0, and roots of 5 dimensions make the runtime throw",
    ),
    "masked_logarithms": Limit(
        ["_log_softmax"],
        lambda node, facts: _may_be_masked(node.args[0], facts.is_finite),
        "of masked values, the logarithm is 0 in place of -inf: `log_softmax(x)` with -inf in it",
    ),
    "negative_indices": Limit(["index.Tensor"], _always, "negative indices are misread: 3.5 dB"),
    "absent_operators": Limit(
        [
            *("logical_not", "t_copy"),
            *("torchao.choose_qparams_affine", "torchao.quantize_affine", "torchao.dequantize_affine"),
            *("quantized_decomposed.choose_qparams.tensor", "quantized_decomposed.embedding_4bit.dtype"),
            "quantized_decomposed.choose_qparams_per_token_asymmetric",
            *("quantized_decomposed.quantize_per_channel", "quantized_decomposed.dequantize_per_channel"),
            *("quantized_decomposed.quantize_per_token", "quantized_decomposed.dequantize_per_token"),
            *(f"{_QUANTIZE}.tensor", f"{_DEQUANTIZE}.tensor"),
        ],
        _always,
        "the runtime has no such operator, and aborts, as in attention with a mask",
    ),
    "norms_of_several_dimensions": Limit(
        ["native_layer_norm"],
        lambda node, _: len(node.args[1]) > 1,
        "over several dimensions, as `LayerNorm((6, 8))`, Vulkan's runtime throws, and WebGPU's reaches 5.9 dB",
    ),
    "hardswish_of_odd_dimensions": Limit(
        ["hardswish"],
        lambda node, _: not 1 <= _value(node).dim() <= 4,
        "upstream keeps it whole for 5 dimensions, which it does not take, and then refuses to lower it; of none, "
        "what keeps NaN throws",
    ),
}

_OF_VULKAN = {
    "convolutions_in_groups": Limit(
        ["convolution"],
        _is_in_groups,
        "groups are ignored: `Conv2d(8, 12, 3, groups=2)` 1.4 dB, `ConvTranspose2d(8, 4, 2, 2, groups=2)` -0.6 dB; "
        "`Conv1d(8, 8, 1, groups=8)` throws",
    ),
    "depthwise_convolutions": Limit(
        ["convolution"],
        _is_odd_depthwise,
        "`Conv2d(8, 8, 7, padding=3, groups=8)` 8 dB; `Conv2d(8, 8, 7, 2, groups=8)` throws",
    ),
    "integers_of_24_bits": Limit(
        ["add.Tensor", "sub.Tensor", "clamp", "div.Tensor_mode", "full", "arange.start_step"],
        lambda node, facts: any(facts.largest.get(value, 0) > 1 << 24 for value in (node, *node.all_input_nodes)),
        "integers are computed as floating point numbers: `x + 1` at 2 ** 24",
    ),
    "results_without_dimensions": Limit(
        [
            *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "div.Tensor_mode", "pow.Tensor_Tensor"),
            *("minimum", "eq.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor"),
        ],
        lambda node, _: _value(node).dim() == 0,
        "the runtime throws if the result has no dimensions: `x[0] * 2` of a vector",
    ),
    "bounds_of_integers": Limit(
        ["clamp"],
        lambda node, _: _value(node).dtype != _value(node.args[0]).dtype,
        "bounds of integers are rounded to integers: `x.clamp(0.5, 2.5)` 2.3 dB",
    ),
    "convolutions_of_lines": Limit(
        ["convolution"],
        _is_odd_line,
        "`Conv1d(3, 7, 1, 2)` -0.2 dB; `Conv1d(3, 7, 3)` along lines of dynamic length -1.7 dB",
    ),
    "norms_of_no_images": Limit(
        ["native_group_norm", "_native_batch_norm_legit_no_training"],
        _is_of_no_images,
        "`GroupNorm(2, 6)` of [2, 6, 5] 18 dB, of a dynamic number of images 11 dB; `BatchNorm1d(6)` throws",
    ),
    "upsampling": Limit(
        ["upsample_nearest2d.vec", "upsample_bilinear2d.vec"],
        _is_odd_resize,
        "`Upsample((7, 8))` of [1, 6, 5, 3] 0.8 dB, with dynamic sizes -1.4 dB; `Upsample(scale_factor=1.5)` throws",
    ),
    "broadcast_conditions": Limit(
        ["where.self"],
        lambda node, _: _is_dynamic(node) and _value(node.args[0]).shape != _value(node).shape,
        "the runtime throws or aborts if a condition is broadcast to dynamic sizes: `x.masked_fill(mask, 0)`",
    ),
    "conversions_to_bool": Limit(
        ["_to_copy", "dim_order_ops._to_dim_order_copy"],
        lambda node, _: _value(node).dtype == torch.bool != _value(node.args[0]).dtype,
        "the runtime has no conversion to bool, and throws: `x.bool()`",
    ),
    "totals_over_outer_dimensions": Limit(
        ["_softmax", "_log_softmax", "mean.dim", "sum.dim_IntList", "amax", "amin"],
        _is_over_outer_dims,
        "the runtime throws: `softmax(x, 1)` of several images, `x.mean(1, keepdim=True)`, `x.mean(0, keepdim=True)`",
    ),
    "positions_of_nan": Limit(
        ["argmax", "argmin"],
        lambda node, facts: _is_given(node.args[0], facts.constants),
        "NaN is not found, and inputs of a program may have it: `x.argmax(-1)`",
    ),
    "positions_that_keep_dimensions": Limit(
        ["argmax", "argmin"],
        lambda node, _: len(node.args) > 2 and bool(node.args[2]),
        "the runtime throws: `x.argmax(-1, keepdim=True)`",
    ),
    "transposed_dilations": Limit(
        ["convolution"],
        lambda node, _: bool(node.args[6]) and any(step > 1 for step in compat.pytree.tree_leaves(node.args[5])),
        "the runtime throws for dilations of transposed ones: `ConvTranspose2d(3, 7, 3, dilation=2)`",
    ),
    "norms_without_weights": Limit(
        ["native_layer_norm", "native_group_norm", "_native_batch_norm_legit_no_training"],
        lambda node, _: None in (node.args[position] for position in _WEIGHTS[_name(node)]),
        "the runtime throws without weight or bias: `LayerNorm(7, bias=False)`",
    ),
    "wide_tables": Limit(
        ["embedding"],
        lambda node, _: _WIDEST < _value(node.args[0]).shape[0] <= 4 * _WIDEST,
        "rows of tables that are wider than an image are mixed up: `Embedding(20000, 4)` -1.2 dB",
    ),
    "infinite_texels": Limit(
        ["rsqrt", "log10", "pow.Tensor_Scalar"],
        lambda node, _: node.args[1:] in ((), (-0.5,)) and _value(node).dim() == 4 and _value(node).shape[1] % 4 != 0,
        "what fills texels becomes infinite, and NaN in a convolution: `Conv2d(5, 4, 3)` of `rsqrt(x)`",
    ),
    "given_tables": Limit(
        ["embedding"],
        lambda node, facts: node.args[0] not in facts.constants,
        "a table that is no constant of the file makes the runtime throw: `embedding(x, table)`",
    ),
    "given_weights": Limit(
        _WEIGHTS, _computes_weights, "weights that are no constants of the file make the runtime throw: `conv2d(x, w)`"
    ),
    "computed_layers": Limit(
        ["permute_copy", "t_copy"],
        _becomes_computed_weight,
        "products with weights that are computed, as in `MultiheadAttention(q, k, v)`, make the runtime throw",
    ),
}

LIMITS = {"vulkan": _OF_BOTH | _OF_VULKAN, "webgpu": _OF_BOTH}
"""What calls are left to the CPU, and why, by target and name. `OFF` turns them off as it does patches."""


_SIZES = "the runtime takes no dynamic sizes: of 14 cases 2 were right, and one differed between runs"

_CROSSES = "the runtime throws where int8 values of several matrices come into a part, or leave it"
_IDLE = "the runtime is wrong or throws where a part takes no input, or gives no output: `x[:, [0, 2]]` -0.9 dB"


def _why_not(node: Node, facts: Facts, target: str) -> str:
    """Why a call is left to the CPU; empty if it is not."""
    if not (hasattr(node.target, "_schema") and any(map(torch.is_tensor, compat.pytree.tree_leaves(_value(node))))):
        return ""  # it takes a result apart, or computes a size
    named = {
        name: limit for name, limit in LIMITS[target].items() if not limit.operators or _name(node) in limit.operators
    }
    limits = (limit for name, limit in named.items() if holds(limit.releases) and not is_off(name))
    return next((limit.why for limit in limits if limit.is_beyond(node, facts)), "")


def _constants(program: ExportedProgram) -> set[Node]:
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    targets = {
        **signature.inputs_to_parameters,
        **{name: buffer for name, buffer in signature.inputs_to_buffers.items() if buffer not in changed},
        **signature.inputs_to_lifted_tensor_constants,
    }
    return {node for node in program.graph.nodes if node.op == "placeholder" and node.name in targets}


def _facts(program: ExportedProgram) -> Facts:
    largest: dict[Node, float] = {}
    for node in program.graph.nodes:
        if most := max((_LARGEST[dtype] for dtype in _dtypes(node) & _LARGEST.keys()), default=0):
            largest[node] = min(most, _largest(node, largest))
    return Facts(_constants(program), largest, partial(_is_finite, program))


_LARGEST = {torch.bool: 1, torch.uint8: 255, torch.int8: 128, torch.int16: 1 << 15, torch.int32: 1 << 31}
_LARGEST[torch.int64] = 1 << 63
_MOVING = frozenset(
    (
        *("view_copy", "unsqueeze_copy", "squeeze_copy.dims", "permute_copy", "t_copy", "expand_copy", "repeat"),
        *("flip", "slice_copy.Tensor", "select_copy.int", "split_with_sizes_copy", "cat", "clone", "alias_copy"),
        *("neg", "abs", "minimum", "maximum", "where.self", "index_select", "gather", "_to_copy"),
        *("dim_order_ops._clone_dim_order", "dim_order_ops._to_dim_order_copy"),
    )
)


def _largest(node: Node, known: Mapping[Node, float]) -> float:
    """The largest absolute value of the integers that a call returns, by those that it takes."""

    def most(given: Any) -> float:
        if not isinstance(given, Node):
            return abs(given) if isinstance(given, int | float) else inf
        value = _value(given)
        if isinstance(value, torch.SymInt):
            bound = value.node.shape_env.bound_sympy(value.node.expr)
            is_known = bound.lower > -(1 << 63) and bound.upper < 1 << 63
            return float(max(bound.upper, -bound.lower)) if is_known else inf
        return known.get(given, inf)

    name = _name(node)
    if name in _MOVING or node.target is getitem:
        tensors = [given for given in node.all_input_nodes if torch.is_tensor(_value(given))]
        return max((known.get(given, inf) for given in tensors), default=inf)
    if name in _RANGES:
        return _RANGES[name](most, node, *node.args)
    if node.op == "placeholder" and getattr(_value(node), "constant", None) is not None and _value(node).numel():
        return float(_value(node).constant.double().abs().max())
    return inf


def _largest_sum(most: Callable[[Any], float], node: Node, one: Any, other: Any) -> float:
    return most(one) + most(node.kwargs.get("alpha", 1)) * most(other)


def _largest_bound(most: Callable[[Any], float], _: Node, one: Any, least: Any = None, greatest: Any = None) -> float:
    return min(most(one), max(most(least), most(greatest)))


def _largest_position(most: Callable[[Any], float], _: Node, start: Any, end: Any, step: Any = 1) -> float:
    return min(max(most(start), most(end)), most(start) + most(step) * _MOST_ELEMENTS)


_RANGES: dict[str, Callable[..., float]] = {
    "add.Tensor": _largest_sum,
    "sub.Tensor": _largest_sum,
    "mul.Tensor": lambda most, _, one, other: most(one) * most(other),
    "div.Tensor_mode": lambda most, _, one, other: most(one),  # noqa: ARG005 - integers
    "clamp": _largest_bound,
    "full": lambda most, _, size, number: most(number),  # noqa: ARG005 - as above
    "full_like": lambda most, _, like, number: most(number),  # noqa: ARG005 - as above
    "scalar_tensor": lambda most, _, number: most(number),
    "arange.start_step": _largest_position,
    **dict.fromkeys(("argmax", "argmin", "max_pool2d_with_indices"), lambda *_: _MOST_ELEMENTS),
}


def _keep_int8_inside(program: ExportedProgram) -> None:
    """Keeps int8 values of several matrices from entering a part or leaving it.

    The runtime assumes fewer bytes for these inputs and outputs than they have, and throws: static int8 of [1, 8, 6, 5]
    with a convolution in 4 groups, which the CPU computes. A dequantize moves into the part that its operand leaves, or
    out of the part that its operand enters; a quantize for others, or of others' results, moves out.
    """
    for node in program.graph.nodes:
        if _name(node) not in (_QUANTIZE, _DEQUANTIZE) or all(size == 1 for size in _value(node).shape[:-2]):
            continue
        operand, tag = node.args[0], node.meta.get("delegation_tag")
        source = operand.meta.get("delegation_tag")
        if _name(node) == _QUANTIZE:
            inside = {user.meta.get("delegation_tag") == tag for user in node.users}
            moves_out = True not in inside or (False in inside and source != tag)
        else:
            moves_out = operand.op == "call_function" and not source
            if source and source != tag:
                node.meta["delegation_tag"] = source
                node.meta.pop(KEPT, None)
        if tag and moves_out:
            del node.meta["delegation_tag"]
            node.meta[KEPT] = _CROSSES


def _drop_idle(result: PartitionResult, constants: Collection[Node]) -> None:
    """Dissolves partitions that compute with constants or sizes only, or nothing, or whose results are not used.

    Where a partition only turns integers into floats, the runtime returns one result instead of two equal ones.
    """
    parts: dict[str, list[Node]] = {}
    for node in result.tagged_exported_program.graph.nodes:
        if tag := node.meta.get("delegation_tag"):
            parts.setdefault(tag, []).append(node)
    for tag, nodes in parts.items():
        calls = {node for node in nodes if node.op == "call_function"}
        taken = {given for node in calls for given in node.all_input_nodes} - calls
        used = {node for node in calls if node.users.keys() - calls and not isinstance(_value(node), torch.SymInt)}
        computes = not all(_name(node).startswith("quantized_decomposed.") for node in calls)
        if calls and not (taken - set(constants) and used and computes):
            for node in nodes:
                node.meta.pop("delegation_tag")
            for node in calls:
                if not isinstance(_value(node), torch.SymInt):
                    node.meta[KEPT] = _IDLE
            result.partition_tags.pop(tag)


_GELU = (1.59571195, 7.27717206e-2, -1.19524928e-4, -9.89342298e-5, 6.75398996e-6, -2.10406810e-7, 2.61102828e-9)
"""Coefficients of GELU, which the runtime computes by tanh in any case (67 to 95 dB).

They are those of the normal distribution as ``sigmoid(x * sum(c[i] * x ** (2 * i)))``, off by 2e-6 at most.

Fitted by weighted least squares to ``log(ndtr(x) / ndtr(-x)) / x`` up to 5.
"""


def _exact_gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    if approximate != "none":
        return NotImplemented
    square = x * x
    series = square * _GELU[-1] + _GELU[-2]
    for coefficient in reversed(_GELU[:-2]):
        series = series * square + coefficient
    return x * torch.sigmoid(x * series)


def _leaving(facts: Facts, target: str) -> Callable[[Any, Node], bool]:
    """Upstream's check of a node, after ours. Nodes that upstream fuses into one operator are not checked."""
    supported = compat.VulkanSupportedOperators._is_node_supported  # noqa: SLF001 - there is no public function

    def check(operators: Any, node: Node) -> bool:
        if node not in operators.fusable_nodes and (why := _why_not(node, facts, target)):
            node.meta[KEPT] = why
            return False
        return bool(supported(operators, node))

    return check


def _within_limits(upstream: type, target: str) -> type:
    """A partitioner that leaves calls beyond the limits, and changed state, to the CPU."""

    class Limited(upstream):  # type: ignore[misc]  # executorch is untyped here
        def transform_for_pre_decomposition(self, program: ExportedProgram) -> ExportedProgram:
            gelu = torch.ops.aten.gelu.default
            if any(node.target is gelu and "tanh" not in node.kwargs.values() for node in program.graph.nodes):
                return program.run_decompositions({gelu: _exact_gelu})
            return program

        def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Callable[[Node], bool]]:
            facts = _facts(ep)
            operators, keeps = super().ops_to_not_decompose(ep)
            return operators, lambda node: keeps(node) and not _why_not(node, facts, target)

        def partition(self, exported_program: ExportedProgram) -> PartitionResult:
            if target == "webgpu" and any(map(_is_dynamic, exported_program.graph.nodes)):
                for node in exported_program.graph.nodes:
                    if hasattr(node.target, "_schema"):
                        node.meta[KEPT] = _SIZES
                return PartitionResult(tagged_exported_program=exported_program, partition_tags={})
            facts = _facts(exported_program)
            with patch.object(compat.VulkanSupportedOperators, "_is_node_supported", _leaving(facts, target)):
                result = super().partition(exported_program)
            _keep_int8_inside(result.tagged_exported_program)
            _drop_idle(result, facts.constants)
            vulkans: Any = getattr(self, "_vulkan_partitioner", self)
            if not vulkans.options.get("alias_buffer_mutations"):
                # The runtime takes changed state for an output, which no call passes, and throws.
                exclude_from_partitions(exported_program, exported_program.graph_signature.buffers_to_mutate.values())
            return result

    Limited.__name__ = upstream.__name__
    return Limited


class _WriteOut(ExportPass):  # type: ignore[misc]  # executorch is untyped here
    """Replaces operators of a delegate whose shaders are wrong for some values by others that are right for all."""

    _exported_program: ExportedProgram | None = None  # set by `apply_passes`

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        call = partial(super().call_operator, kwargs={}, meta=meta)
        if write := _WRITTEN_OUT.get(op):
            replacement = write(call, self._exported_program, op, *args)
            if replacement is not None:
                return replacement
        result = super().call_operator(op, args, kwargs, meta)
        if op in _CLAMPS:
            constants = _constants(self._exported_program)
            for operand in (
                arg for arg in args if isinstance(arg, compat.ProxyValue) and _is_given(arg.node, constants)
            ):
                result = call(_ATEN.add.Tensor, (result, _zeros(call, operand)))
        return result


def _zeros(call: Callable[..., Any], x: Any) -> Any:
    """Zeros, or NaN where a tensor has it."""
    parts = call(_ATEN.sigmoid.default, (x,))
    return call(_ATEN.sub.Tensor, (parts, parts))


_ATEN = compat.edge_ops.aten


def _write_total(
    call: Callable[..., Any], program: Any, operator: Any, x: Any, dims: Any = (), keep: bool = False, *_more: Any
) -> Any:
    """Writes a total over the last dimension that does not keep it, and the extremum of values that may be NaN.

    The first one's shader holds results to the range of fp16, since `#if T == float16_t` (convert.glslh) compares two
    undefined names: `(x * x).sum(-1)` 1.3 dB above 65504. Totals that keep their dimension are right. The others lose
    NaN: `amax(x, -1)`, as `_CLAMPS` do.
    """
    is_last = [dim % x.data.dim() for dim in dims or ()] == [x.data.dim() - 1]
    loses_nan = operator in _EXTREMES and (keep or is_last) and _is_given(x.node, _constants(program))
    if (keep or not is_last) and not loses_nan:
        return None
    total = call(operator, (x, dims, True))
    if loses_nan:
        zeros = call(_ATEN.sum.dim_IntList, (_zeros(call, x), dims, True))
        total = call(_ATEN.add.Tensor, (total, zeros))
    return total if keep else call(_ATEN.select_copy.int, (total, -1, 0))


def _write_power(call: Callable[..., Any], _program: Any, _operator: Any, x: Any, exponent: Any) -> Any:
    """Writes a power whose exponent has its own function in eager, too."""
    match exponent:
        case 2 | 3:
            square = call(_ATEN.mul.Tensor, (x, x))
            return square if exponent == 2 else call(_ATEN.mul.Tensor, (square, x))
        case 0.5:
            return call(_ATEN.sqrt.default, (x,))
        case -0.5:
            return call(_ATEN.rsqrt.default, (x,))
    return None


def _write_hardswish(call: Callable[..., Any], program: Any, operator: Any, x: Any) -> Any:
    """Keeps what is NaN in eager, of inputs: the shader returns 0 for `hardswish(x)` of -inf."""
    if not _is_given(x.node, _constants(program)):
        return None
    least = call(_ATEN.clamp.default, (x, None, 0.0))
    part = call(_ATEN.mul.Tensor, (least, call(_ATEN.sigmoid.default, (least,))))
    return call(_ATEN.add.Tensor, (call(operator, (x,)), call(_ATEN.sub.Tensor, (part, part))))


def _write_softmax(call: Callable[..., Any], program: Any, _operator: Any, x: Any, dim: int, *_: Any) -> Any:
    """Writes a softmax of masked values: its shader makes zeros of NaN, and of rows of `finfo.min`, unlike eager."""
    if not _may_be_masked(x.node, partial(_is_finite, program)):
        return None
    numerators = call(_ATEN.exp.default, (call(_ATEN.sub.Tensor, (x, call(_ATEN.amax.default, (x, [dim], True)))),))
    return call(_ATEN.div.Tensor, (numerators, call(_ATEN.sum.dim_IntList, (numerators, [dim], True))))


def _write_pool(
    call: Callable[..., Any], _program: Any, operator: Any, x: Any, kernel: Any, stride: Any = (), *more: Any
) -> Any:
    """Writes out the strides of a pooling like `max_pool2d(x, 2)`; the runtime throws without them."""
    return None if stride else call(operator, (x, kernel, kernel, *more))


_EXTREMES = (_ATEN.amax.default, _ATEN.amin.default)
_TOTALS = (_ATEN.sum.dim_IntList, _ATEN.mean.dim, *_EXTREMES)
_WRITTEN_OUT: dict[Any, Callable[..., Any]] = {
    _ATEN.pow.Tensor_Scalar: _write_power,
    _ATEN.hardswish.default: _write_hardswish,
    _ATEN._softmax.default: _write_softmax,  # noqa: SLF001 - the operator's name
    **dict.fromkeys(_TOTALS, _write_total),
    **dict.fromkeys((_ATEN.avg_pool2d.default, _ATEN.max_pool2d_with_indices.default), _write_pool),
}
_CLAMPS = {getattr(_ATEN, name).default for name in _LOSES_NAN}
"""Their shaders lose NaN: `relu(x)`. Inputs of a program may have some, so zeros are added to these, or NaN."""

_ARITHMETIC = frozenset(("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"))
_PASSING = _MOVING | _ARITHMETIC | {"clamp", "hardtanh", "relu", "sigmoid"}  # operators that pass NaN on
_MASK = 1e38


def _may_be_masked(node: Node, is_finite: Callable[[Node], bool]) -> bool:
    """Whether values may be infinite or as good as: a mask was added to them, or they are inputs that may have one."""
    left, seen = [node], {node}
    while left:
        node = left.pop()
        name = _name(node)
        if node.op == "placeholder":
            if not is_finite(node):
                return True
        elif name == "full":
            if abs(node.args[1]) > _MASK:
                return True
        elif name in _MOVING | _ARITHMETIC or node.target is getitem:
            left += _floating_inputs(node, seen)
    return False


def _is_given(node: Node, constants: Iterable[Node]) -> bool:
    """Whether floating point numbers are inputs of a program, or moved and computed from inputs and constants alone."""
    names = {constant.name for constant in constants}  # passes make other nodes
    left, seen = [node], {node}
    for value in left:
        if value.op != "placeholder" and not (_name(value) in _PASSING or value.target is getitem):
            return False
        left += _floating_inputs(value, seen)
    is_floating = bool(_value(node).is_floating_point())
    return is_floating and any(value.op == "placeholder" and value.name not in names for value in left)


def _floating_inputs(node: Node, seen: set[Node]) -> list[Node]:
    """The floating point inputs of a call that have not been seen; adds all of its tensors to those."""
    new = {value for value in node.all_input_nodes if torch.is_tensor(_value(value))} - seen
    seen |= new
    return [value for value in new if _value(value).is_floating_point()]


def _is_finite(program: ExportedProgram, placeholder: Node) -> bool:
    """Whether a value of a program is a constant without masks."""
    signature = program.graph_signature
    if placeholder.name in signature.inputs_to_parameters:
        return True
    owners = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    value = getattr(_value(placeholder), "constant", None)
    if value is None and (name := owners.get(placeholder.name)):
        value = program.state_dict.get(name, program.constants.get(name))
        value = None if isinstance(value, compat.FakeTensor) else value
    with compat.unset_fake_temporarily():  # passes run in a mode of fake tensors
        return value is not None and bool((value.abs() < _MASK).all())


_preprocess = compat.find("VulkanBackend.preprocess")


@mends("totals, powers, softmaxes and pools are wrong on GPUs, or throw", "VulkanBackend.preprocess", "get_op_features")
def write_operators_out() -> None:
    """Has the backend write operators out, see `_WriteOut`; again changes nothing."""

    def preprocess(program: ExportedProgram, specs: list[Any]) -> Any:
        if any(node.target in _WRITTEN_OUT.keys() | _CLAMPS for node in program.graph.nodes):
            program = compat.apply_passes(program, [_WriteOut()])
        return _preprocess(program, specs)

    compat.VulkanBackend.preprocess = staticmethod(preprocess)
    for operator in _TOTALS:
        compat.get_op_features(operator).pick_io_storage_fn = _texture_of_total


def _texture_of_total(node: Node) -> Any:
    """Storage of a total: textures, as those over buffers are held to the range of fp16."""
    per_row = compat.is_reduce_node_supported_by_per_row_impl(node)
    return (compat.ANY_TEXTURE, compat.ANY_TEXTURE) if per_row else compat.pick_storage_for_reduce(node)


@mends("patterns are traced again for each payload, which takes time", "fusable_patterns")
def trace_patterns_once() -> None:
    """Keeps the graphs of upstream's patterns, which it traces for each partition and each payload, in over a second.

    They depend on nothing, and are only compared with programs. Delete this once upstream keeps them itself.
    """
    for entry in compat.fusable_patterns.values():
        if entry.get_graphs_fn and not hasattr(entry.get_graphs_fn, "cache_info"):
            entry.get_graphs_fn = cache(entry.get_graphs_fn)


def _lacks_constants(match: Any) -> bool:
    """Whether an RMSNorm's weight is computed (the runtime throws), or PT2E made its epsilon, which upstream reads."""
    value = _value(match.eps_node) if isinstance(match.eps_node, Node) else None
    weight = match.weight_node
    while weight.op == "call_function" and _name(weight) in _CASTS:
        weight = weight.args[0]
    is_constant = weight.op == "placeholder" and weight.name.startswith(_CONSTANT_NAMES)
    return not is_constant or (isinstance(value, compat.FakeTensor) and value.constant is None)


_CASTS = ("_to_copy", "to.dtype", "dim_order_ops._to_dim_order_copy")
_CONSTANT_NAMES = ("p_", "b_", "c_", "_lifted_tensor_constant")  # of placeholders, as torch.export makes them


def _has_no_shader(match: Any) -> bool:
    """Whether no shader computes a quantized linear layer.

    There is none for a scale that is found at run time. With a static one, `Linear(16, 16)` of [2, 3, 16] reaches
    -2 dB. Weights of 4 bits need several rows, inputs in multiples of 4 and outputs in multiples of 8: of [3, 64],
    `Linear(64, 30)` makes the runtime throw, and `Linear(64, 12)` reaches 3 dB.

    For torchao's layers, there are shaders for weights of 4 bits in groups, and for one matrix: with these weights
    alone, `Linear(64, 32)` of [2, 4, 64] returns infinite numbers, and with 8 bits the runtime aborts.
    """
    if match.is_weight_pergroup_quantized() and _value(match.weight_node).shape[0] % 4:
        return True  # upstream pads the scales, and then fails
    operand, weight = match.dequantize_input_node, match.dequantize_weight_node
    one_matrix = all(size == 1 for size in _value(match.pattern_input_node).shape[:-2])
    if _name(weight) == "torchao.dequantize_affine":
        in_groups = match.is_weight_pergroup_quantized() and weight.args[5] == _INT4_MIN
        return not (in_groups and one_matrix and (operand is None or _takes_quantization(match)))
    if operand is not None:
        return _name(operand) == f"{_DEQUANTIZE}.tensor" or (_name(operand) == _DEQUANTIZE and not one_matrix)
    if _name(weight) != "quantized_decomposed.dequantize_per_channel" or weight.args[4] != _INT4_MIN:
        return False
    count, width = _value(match.weight_node).shape
    return _value(match.anchor_node).shape[-2] == 1 or bool(count % 8 or width % 4)


def _takes_quantization(match: Any) -> bool:
    """Whether a torchao layer has a scale for each row of its input; adds the quantization of that input to it."""
    quantize, dequantize = match.quantize_input_node, match.dequantize_input_node
    if (
        quantize is None
        or {*quantize.users} != {dequantize}
        or {*dequantize.users} - {*match.all_nodes}
        or not match.is_input_dynamic_perchannel_quantized()
    ):
        return False
    chosen = match.input_scales_node.args[0]
    match.all_nodes += [quantize, chosen, *chosen.users]
    return True


def _is_odd_image(match: Any) -> bool:
    """Whether a quantized convolution is of several images, along lines, or in groups that fill no texels."""
    images, weight, groups = _value(match.anchor_node.args[0]), _value(match.weight_node), match.groups
    if images.dim() != weight.dim() or images.dim() != 4 or images.shape[0] != 1:
        return True
    if groups > 1 and groups == weight.shape[0] and weight.shape[1] == 1:
        return bool(groups % 4)
    return groups > 1 and bool(images.shape[1] // groups % 4)


_INT4_MIN = -8
_DECLINED = {"rms_norm": _lacks_constants, "quantized_linear": _has_no_shader, "quantized_convolution": _is_odd_image}


def mend_vulkan() -> None:
    """Applies all patches of this file that change no payload but wrong ones."""
    decline_fusions()
    write_operators_out()
    merge_views_in_order()
    cut_off_folded()


_fold = compat.find("FoldQDQPass.call")


@mends("static int8 on GPUs does not cut off what is beyond the calibrated range", "FoldQDQPass.call")
def cut_off_folded() -> None:
    """Has upstream clamp values to the range of int8 where it drops a quantize and its dequantize.

    `Linear(16, 12)` of [2, 3, 16], which has no shader, was 4 dB from the quantized program at twice the inputs that it
    was calibrated with. Delete once upstream keeps the pair or clamps.
    """

    def call(fold: Any, module: torch.fx.GraphModule) -> Any:
        for node in module.graph.nodes:
            users = [user for user in node.users if _name(user) == _DEQUANTIZE]
            if _name(node) == _QUANTIZE and users and 1 <= _value(node).dim() <= 4:
                value, scale, zero, least, greatest, *_ = node.args
                with module.graph.inserting_before(node):
                    bounds = (scale * (least - zero), scale * (greatest - zero))
                    clamped = module.graph.call_function(_ATEN.clamp.default, (value, *bounds))
                clamped.meta |= value.meta
                for user in users:
                    user.replace_all_uses_with(clamped)
        return _fold(fold, module)

    compat.FoldQDQPass.call = call


_merge = compat.find("FuseViewCopyTransform._merge_view_copy_chains")


@mends(
    "layers of torchao that are decomposed cannot be lowered for GPUs with a dynamic batch",
    "FuseViewCopyTransform._merge_view_copy_chains",
)
def merge_views_in_order() -> None:
    """Mends the order of views that upstream merges."""
    compat.FuseViewCopyTransform._merge_view_copy_chains = _merge_views  # noqa: SLF001 - there is no other place


def _merge_views(fuse: compat.FuseViewCopyTransform, graph: torch.fx.Graph) -> tuple[torch.fx.Graph, bool]:
    """Moves sizes to the front where upstream finds the order of merged views wrong.

    It gives the first of several views the shape of the last, whose sizes may be computed after the first, as for a
    layer of torchao that is decomposed before another one, with a dynamic batch.
    """
    try:
        merged: tuple[torch.fx.Graph, bool] = _merge(fuse, graph)
    except RuntimeError:
        *_, last = graph.find_nodes(op="placeholder")
        for node in graph.nodes:
            if node.op == "call_function" and isinstance(_value(node), torch.SymInt):
                max(last, *node.all_input_nodes).append(node)
        graph.eliminate_dead_code()
        merged = graph, True
    return merged


@mends("patterns are fused that cannot be written or run on GPUs", "fusable_patterns")
def decline_fusions() -> None:
    """Keeps upstream from fusing patterns that it fails to write or to run; their calls are checked one by one.

    Delete an entry of `_DECLINED` once `rms_norm.py` reads epsilon from the program, or the runtime has the shaders.
    """
    for name, declines in _DECLINED.items():
        entry = compat.fusable_patterns[name]
        if not hasattr(entry.detector_fn, "__wrapped__"):
            entry.detector_fn = _declining(entry.detector_fn, declines)


def _declining(detect: Callable[[Node], Any], declines: Callable[[Any], bool]) -> Callable[[Node], Any]:
    @wraps(detect)
    def detected(node: Node) -> Any:
        try:
            match = detect(node)
            return None if match is None or declines(match) else match
        except (AssertionError, IndexError):  # weights with one scale, which is no tensor; vectors as inputs
            return None

    return detected


LimitedVulkanPartitioner = _within_limits(VulkanPartitioner, "vulkan")
LimitedWebGpuPartitioner = _within_limits(compat.WebGPUPartitioner, "webgpu")
