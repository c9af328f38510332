"""Rewrites operators that ExecuTorch 1.5.1 lacks or mistakes with others, and computes constants.

Part of the keys of `export` and `source_transform`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node

from ..programs.weights import content_of
from ..upstream import compat
from ..upstream.torch_export import inline, traced
from .batch_norms import WITH_WEIGHTS, is_constant

_ATEN = torch.ops.aten
_TRANSPOSED_IMAGES = (_ATEN.conv_transpose2d.input, _ATEN.conv_transpose3d.input)


def rewrite(program: ExportedProgram, *, alone: bool) -> None:
    """Rewrites operators by `_WRITTEN`, drops checks of values, and computes constants, in place.

    Constants are computed that no kernel computes, such as `torch.tril_indices` and `torch.linalg.inv`, and weights of
    pruned and parametrized layers, if the file does not grow. Otherwise, XNNPACK takes the first tensor that a weight
    is computed from for the weight, which for pruned layers is the mask (-18 dB): see `_is_of_constant_weight` in
    `tasks.upstream.xnnpack`.

    `alone` says that the model has no other methods, which could change buffers that this one only reads.
    """
    for module in [module for module in program.graph_module.modules() if isinstance(module, GraphModule)]:
        _drop_checks(module.graph)
        for node in list(module.graph.nodes):
            written = _WRITTEN.get(node.target) if node.op == "call_function" else None
            if written and (nodes := inline(module.graph, node, written)):
                program.graph_signature.replace_all_uses(node.name, nodes[-1].name)
        module.recompile()
    if _compute_constants(program, alone=alone):
        program.graph_module.recompile()


def _drop_checks(graph: Graph) -> None:
    """Drops `torch._check_tensor_all(...)`, for which the runtime has no operator, unless its value is used."""
    for check in graph.find_nodes(op="call_function", target=_ATEN._is_all_true.default):  # noqa: SLF001 - its name
        dependents = dict.fromkeys([check])
        for node in graph.nodes:  # users come after what they use
            if not dependents.keys().isdisjoint(node.all_input_nodes):
                dependents[node] = None
        if all(node.users or node.target in _CHECKS for node in dependents):
            for node in reversed(dependents):
                graph.erase_node(node)


_CHECKS = {_ATEN._assert_scalar.default, _ATEN._assert_async.msg, _ATEN._assert_async.default}  # noqa: SLF001 - names

_Written = Callable[..., Any]
"""What computes the same as an operator, from its arguments; NotImplemented where the operator can stay."""


def _pad(x: Tensor, pads: list[int], mode: str = "constant", value: float | None = None) -> Any:
    """Negative padding as slices: kernels pad by positive numbers ("Padding values must be non-negative")."""
    if not all(type(size) is int for size in pads) or min(pads, default=0) >= 0:
        return NotImplemented
    wider = [max(size, 0) for size in pads]
    if mode != "constant" and any(wider):  # which looks at what is cut off
        x = F.pad(x, wider, mode)
    for position in range(0, len(pads), 2):
        start, end = (-min(size, 0) for size in pads[position : position + 2])
        if start or end:
            x = _ATEN.slice.Tensor(x, x.dim() - 1 - position // 2, start, -end or _END)
    return F.pad(x, wider, value=value) if mode == "constant" and any(wider) else x


_END = 2**63 - 1  # as exported slices have it


def _constant_pad(x: Tensor, pads: list[int], value: float = 0) -> Any:
    return _pad(x, pads, "constant", value)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """A weight of one dimension as a row: XNNPACK takes matrices ("invalid_parameter"), as does PT2E (IndexError)."""
    if weight.dim() != 1:
        return NotImplemented
    return F.linear(x, weight.unsqueeze(0), None if bias is None else bias.reshape(1)).squeeze(-1)


def _batch_norm(  # noqa: PLR0913, PLR0917 - as the operator has them
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Any:
    """A norm without statistics of its own: there is no kernel of it."""
    del variance, momentum, cudnn
    if not training or mean is not None:
        return NotImplemented
    dims = [0, *range(2, x.dim())]
    centered = x - x.mean(dims, keepdim=True)
    normalized = centered * (centered.square().mean(dims, keepdim=True) + eps).rsqrt()
    shape = [1, -1, *[1] * (x.dim() - 2)]
    scaled = normalized if weight is None else normalized * weight.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)


def _bilinear(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """Computes it as a linear layer and a sum of products, since there is no kernel for it."""
    rows, inner, last = weight.shape
    matrix = weight.permute(0, 2, 1).reshape(rows * last, inner)
    product = (F.linear(x, matrix).unflatten(-1, (rows, last)) * other.unsqueeze(-2)).sum(-1)
    return product if bias is None else product + bias


def _three(sizes: list[int] | int) -> list[int]:
    return [sizes] * 3 if isinstance(sizes, int) else [*sizes] * (3 // len(sizes))


def _conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: list[int] | int = 1,
    padding: list[int] | int = 0,
    dilation: list[int] | int = 1,
    groups: int = 1,
) -> Any:
    """A convolution of images whose channels are those of a window's frames: kernels take two dimensions at most."""
    if type(x.shape[-3]) is not int:  # of slices, whose number has to be known
        return NotImplemented
    if x.dim() == 4:
        return _conv3d(x.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    (step, *steps), (edge, *edges), (spread, *spreads) = map(_three, (stride, padding, dilation))
    frames = F.pad(x, [0, 0, 0, 0, edge, edge]).transpose(1, 2)
    last = frames.shape[1] - spread * (weight.shape[2] - 1)
    taps = [_ATEN.slice.Tensor(frames, 1, at * spread, at * spread + last, step) for at in range(weight.shape[2])]
    images = torch.stack(taps, 3).flatten(2, 3)
    convolved = F.conv2d(images.flatten(0, 1), weight.flatten(1, 2), bias, steps, edges, spreads, groups)
    return convolved.unflatten(0, images.shape[:2]).transpose(1, 2)


def _pool3d(name: str, *neutral: int | None) -> _Written:
    """Pools images, and then along their depth, by sizes that are `neutral` for lines: no kernel takes volumes."""
    pool = getattr(_ATEN, f"{name}2d").default

    def write(x: Tensor, *arguments: Any) -> Any:
        if x.dim() == 4:
            return write(x.unsqueeze(0), *arguments).squeeze(0)
        # without a stride, it is the kernel's size
        sizes = [_three(arguments[0] if size == [] else size) for size in arguments[: len(neutral)]]
        along = rest = arguments[len(neutral) :]
        if len(rest) == 3 and rest[2]:  # the divisor of averages
            rest = (*rest[:2], 1)
        images = pool(x.flatten(1, 2), *(size[1:] for size in sizes), *rest)
        lines = images.unflatten(1, x.shape[1:3]).flatten(3)
        same = [lines.shape[3] if size is None else size for size in neutral]
        pooled = pool(lines, *([size[0], keeps] for size, keeps in zip(sizes, same, strict=False)), *along)
        return pooled.unflatten(3, images.shape[2:])

    return write


def _named_padding(dimensions: int) -> _Written:
    """Padding by name in numbers: quantizers know no other, and find nothing to quantize."""
    conv: Any = _conv3d if dimensions == 3 else getattr(F, f"conv{dimensions}d")

    def write(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: list[int] | int = 1,
        padding: str = "valid",
        dilation: list[int] | int = 1,
        groups: int = 1,
    ) -> Any:
        steps = [dilation] * dimensions if isinstance(dilation, int) else [*dilation] * (dimensions // len(dilation))
        totals = [step * (size - 1) for step, size in zip(steps, weight.shape[2:], strict=True)]
        sizes = [total // 2 for total in totals] if padding == "same" else [0] * dimensions
        if padding == "same" and (odd := [total % 2 for total in totals]) and any(odd):
            x = F.pad(x, [each for more in reversed(odd) for each in (0, more)])
        if x.dim() == dimensions + 1 and dimensions < 3:
            return conv(x.unsqueeze(0), weight, bias, stride, sizes, dilation, groups).squeeze(0)
        return conv(x, weight, bias, stride, sizes, dilation, groups)

    return write


def _with_batch(dimensions: int, call: Any) -> _Written:
    """A batch of one: XNNPACK's passes lay out images with four dimensions ("non-NHWC compatible node")."""

    def write(x: Tensor, *rest: Any) -> Any:
        if x.dim() != dimensions + 1:
            return NotImplemented
        return compat.pytree.tree_map(lambda made: made.squeeze(0), call(x.unsqueeze(0), *rest))

    return write


def _adaptive_max_pool(dimensions: int) -> _Written:
    """Maxima of slices, without their indices: there is no kernel of it. Needs sizes that are known."""

    def write(x: Tensor, sizes: list[int] | int) -> Any:
        given, sizes = x.shape[-dimensions:], [sizes] * dimensions if isinstance(sizes, int) else sizes
        if not all(type(size) is int for size in given):
            return NotImplemented
        for dim, (before, after) in enumerate(zip(given, sizes, strict=True), start=-dimensions):
            bounds = [(index * before // after, -(-(index + 1) * before // after)) for index in range(after)]
            parts = [_ATEN.slice.Tensor(x, dim, *ends).amax(dim, keepdim=True) for ends in bounds]
            x = torch.cat(parts, dim) if len(parts) > 1 else parts[0]
        return [x]

    return write


def _mean(x: Tensor, dims: list[int] | None = None, keep: bool = False, dtype: torch.dtype | None = None) -> Any:
    """A mean over images that keeps their dimensions, which it then drops: XNNPACK has that."""
    if keep or dtype or x.dim() != 4 or sorted(dim % 4 for dim in dims or ()) != [2, 3]:
        return NotImplemented
    return x.mean(dims, keepdim=True).flatten(1)


_WRITTEN: dict[Any, _Written] = {
    _ATEN.pad.default: _pad,
    _ATEN.constant_pad_nd.default: _constant_pad,
    _ATEN.linear.default: _linear,
    _ATEN.batch_norm.default: _batch_norm,
    _ATEN.bilinear.default: _bilinear,
    _ATEN.empty_like.default: torch.zeros_like,  # of a layout of its own, for which there is no operator
    _ATEN.mean.dim: _mean,
    **{getattr(_ATEN, f"adaptive_max_pool{d}d").default: _adaptive_max_pool(d) for d in (1, 2, 3)},
    **{getattr(_ATEN, f"conv{d}d").padding: _named_padding(d) for d in (1, 2, 3)},
    **{
        operator: _with_batch(d, operator)
        for d, transposed in enumerate((_ATEN.conv_transpose1d.default, *_TRANSPOSED_IMAGES), start=1)
        for operator in (
            transposed,
            *(getattr(_ATEN, f"{name}{d}d").default for name in ("conv", "max_pool", "avg_pool", "adaptive_avg_pool")),
        )
    },
    _ATEN.conv3d.default: _conv3d,
    _ATEN.max_pool3d.default: _pool3d("max_pool", 1, 1, 0, 1),
    _ATEN.avg_pool3d.default: _pool3d("avg_pool", 1, 1, 0),
    _ATEN.adaptive_avg_pool3d.default: _pool3d("adaptive_avg_pool", None),
}
"""Functions that compute the same as an operator on which upstream fails, in the way that their docstrings say."""


_MOVING = {  # what only moves numbers, or casts them
    getattr(_ATEN, name)
    for name in ("alias", "detach", "mT", "numpy_T", "permute", "t", "to", "transpose", "_to_copy", "contiguous")
}


def _compute_constants(program: ExportedProgram, *, alone: bool) -> bool:
    """Makes constants of values that need not be computed at run time; returns whether there are any."""
    known = _known(program, alone=alone)
    results = [node for node in known if _is_tensor(node) and any(user not in known for user in node.users)]
    computed = [node for node in results if _is_computed_here(node, known)]
    if not computed:
        return False
    values: dict[Node, Any] = {}
    with ExitStack() as readable, torch.no_grad():
        for node in computed:
            _replace(program, node, _value(program, node, values, readable))
    for node in reversed(known):
        if not node.users:
            program.graph.erase_node(node)
    for node in program.graph.find_nodes(op="placeholder"):
        if not node.users and node in values:
            compat.delete_constant_placeholder(program, node)
    return True


def _known(program: ExportedProgram, *, alone: bool) -> dict[Node, None]:
    """What operators compute of constants and numbers alone, in order."""
    tensors = program.graph_signature.inputs_to_lifted_tensor_constants
    buffers = program.graph_signature.inputs_to_buffers
    known: dict[Node, None] = {}

    def is_known(node: Node) -> bool:
        if node in known or node.name in tensors:
            return True
        return is_constant(program, node) and (alone or node.name not in buffers)

    for node in program.graph.nodes:
        computes = node.target is operator.getitem or (
            isinstance(node.target, torch._ops.OpOverload)  # noqa: SLF001 - has no public name
            and node.target.namespace == "aten"
            and torch.Tag.nondeterministic_seeded not in node.target.tags
            and not node.target._schema.is_mutable  # noqa: SLF001 - as above
        )
        if computes and "val" in node.meta and all(map(is_known, node.all_input_nodes)):
            known[node] = None
    return known


def _is_tensor(node: Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, Tensor) and all(type(size) is int for size in value.shape)


def _is_computed_here(node: Node, known: Iterable[Node]) -> bool:
    """Whether no kernel computes a value, or it is a weight that takes no more memory than what it is made of."""
    sources = _sources(node)
    chain = [source for source in known if source in sources]
    if any(map(_has_no_kernel, chain)):
        return True
    if all(_packet(source) in _MOVING for source in chain) or not _is_weight(node):
        return False
    replaced = [source for source in sources if source.op == "placeholder" and sources.issuperset(source.users)]
    return _bytes(node) <= max(sum(map(_bytes, replaced)), _FEW)


_FEW = 1 << 16
"""Bytes by which a file may grow if the sources of a weight have other uses, too."""


def _sources(node: Node) -> set[Node]:
    """A node, and everything that it is computed from."""
    sources, ahead = {node}, [node]
    while ahead:
        fresh = set(ahead.pop().all_input_nodes) - sources
        sources |= fresh
        ahead += fresh
    return sources


def _packet(node: Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def _is_weight(node: Node) -> bool:
    """Whether layers take a value as their weight or bias, and nothing else takes it."""
    return all(_packet(user) in WITH_WEIGHTS and node in user.args[1:3] for user in node.users)


def _bytes(node: Node) -> int:
    value = node.meta["val"]
    return int(math.prod(value.shape) * value.element_size())


def _has_no_kernel(node: Node) -> bool:
    """Whether an operator is none of ATen's core, and none that is decomposed into those; or is one of `_LACKING`."""
    if node.target is operator.getitem or torch.Tag.core in node.target.tags:
        return _packet(node) in _LACKING
    if _packet(node) is _ATEN.lift_fresh_copy or node.target in compat.core_aten_decompositions_post_autograd():
        return False  # what `torch.tensor` returns is a constant already
    if not node.target._can_decompose():  # noqa: SLF001 - has no public name
        return True
    nodes = traced(node, node.target, pre_dispatch=False)[0].nodes
    calls = [inner for inner in nodes if inner.op == "call_function"]
    return any(call.target is not node.target and _has_no_kernel(call) for call in calls)


_LACKING = {_ATEN.sort}
"""Operators of ATen's core that ExecuTorch's runtime has no kernel of."""


def _value(program: ExportedProgram, node: Node, values: dict[Node, Any], readable: ExitStack) -> Any:
    if node not in values:
        if node.op == "placeholder":
            tensor = compat.get_param_tensor(program, node)
            readable.enter_context(content_of(tensor.untyped_storage()))
            values[node] = tensor.detach()
        else:
            arguments = compat.pytree.tree_map_only(
                Node, lambda given: _value(program, given, values, readable), (node.args, node.kwargs)
            )
            values[node] = node.target(*arguments[0], **arguments[1])
    return values[node]


def _replace(program: ExportedProgram, node: Node, value: Tensor) -> None:
    """Makes a value a parameter, if it is made of one, or a constant; it takes no other memory than its own."""
    signature = program.graph_signature
    parameters = signature.inputs_to_parameters
    of_parameters = value.is_floating_point() and any(source.name in parameters for source in _sources(node))
    inputs = {*signature.user_inputs, *signature.inputs_to_lifted_custom_objs}
    nodes = program.graph.nodes
    first = next(other for other in nodes if of_parameters or other.name in inputs or other.op != "placeholder")
    with program.graph.inserting_before(first):
        constant = compat.create_constant_placeholder(
            exp_program=program,
            graph=program.graph,
            name=f"{node.name}_computed",
            kind=InputKind.PARAMETER if of_parameters else InputKind.CONSTANT_TENSOR,
            data=value.contiguous().clone(),
        )
    node.replace_all_uses_with(constant)
    signature.replace_all_uses(node.name, constant.name)
