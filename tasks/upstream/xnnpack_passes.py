"""XNNPACK's passes of executorch 1.5.1: layouts of quantized values, the approximate GELU, and patterns.

In the keys of XNNPACK's stages. Each patch has a function, which lasts for the process; a second call changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial, wraps
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from . import compat
from .patches import mends
from .torchao import packed_by_rows


def mend_xnnpack_passes() -> None:
    """Applies all patches of this file."""
    prune_xnnpack_patterns()
    mend_dynamic_layouts()
    separate_products()
    mend_static_layouts()
    expand_tanh_gelu()
    join_in_float()
    pack_by_rows()
    mend_batch_norms()


_pack = compat.find("NodeVisitor.convert_to_qc4w")


@mends("packing weights of 4 bits makes three copies of a matrix", "NodeVisitor.convert_to_qc4w")
def pack_by_rows() -> None:
    """Has weights of 4 bits packed some rows at a time.

    `convert_to_qc4w` (backends/xnnpack/operators/node_visitor.py) makes three copies of a matrix, of a byte for each
    weight. Delete once it does not.
    """
    compat.NodeVisitor.convert_to_qc4w = staticmethod(wraps(_pack)(partial(packed_by_rows, pack=_pack)))


_can_fuse, _insert_pair = compat.find("FuseBatchNormPass.can_fuse"), compat.find("Conv1dUnsqueezePass.insert_q_dq_pair")


@mends(
    "batch norms after linear layers of sequences are wrong or fail, and so do those between int8 operators",
    "FuseBatchNormPass.can_fuse",
    "Conv1dUnsqueezePass.insert_q_dq_pair",
)
def mend_batch_norms() -> None:
    """Mends two mistakes of the passes about batch norms.

    - `FuseBatchNormPass` folds a norm into the linear layer before it, whose last dimension is the channels' only in
      two dimensions. Of [batch, tokens, channels], the norm is over tokens: that fails, or, with as many tokens as
      channels, is silently wrong. Here, these norms are left to `DecomposeBatchNorm`.
    - That makes a convolution in floating point, and `Conv1dUnsqueezePass` quantizes the input and output of one for
      lines between quantized operators ("Weight and Input should both be quantized"). Layers in `quantize.exclude` have
      the same problem. Here, the pass does so only if the weight is quantized.

    Delete each once upstream compares the dimensions, and checks the weight.
    """
    compat.FuseBatchNormPass.can_fuse = staticmethod(_can_fuse_rows)
    compat.Conv1dUnsqueezePass.insert_q_dq_pair = _insert_where_quantized


@wraps(_can_fuse)
def _can_fuse_rows(layer: Node, norm: Node, *rest: Any) -> bool:
    rows = layer.target is not _LINEAR or layer.meta["val"].dim() == 2
    return rows and bool(_can_fuse(layer, norm, *rest))


@wraps(_insert_pair)
def _insert_where_quantized(self: Any, graph: Graph, anchor: Node, q_params: Any) -> None:
    layer = anchor if anchor.target is _CONVOLUTION else next(iter(anchor.users))
    if compat.is_dequant(layer.args[1]):
        _insert_pair(self, graph, anchor, q_params)


_REPLACED: tuple[str, ...] = ("input_to_nhwc", "input_to_nchw", "requires_nhwc_input", "requires_nchw_inputs")
_REPLACED += ("is_nhwc_node", "is_nchw_node", "call", "insert_copy_q_dq", "memory_sensitive_ops_nchw")
_to_nhwc, _to_nchw, _takes_nhwc, _takes_nchw, _is_nhwc, _is_nchw, _call, _insert, _usual_layout = (
    compat.find(f"ChannelsLastTaggedReshapePass.{name}") for name in _REPLACED
)
_COPY = compat.edge_ops.aten._to_copy.default  # noqa: SLF001 - the operator's name


@mends(
    "files with convolutions that are quantized dynamically do not run, or are wrong",
    "ChannelsLastTaggedReshapePass.input_to_nhwc",
    "ChannelsLastTaggedReshapePass.input_to_nchw",
)
def mend_dynamic_layouts() -> None:
    """Has the pass copy dynamically quantized values in the other layout, for one quantization alone.

    Convolutions take channels last, linear layers do not. The pass (`ChannelsLastTaggedReshapePass` in backends/
    xnnpack/_passes/channels_last_tagged_reshape_pass.py) puts copies in the other layout before them. It fails in two
    ways if an input is quantized dynamically:

    - `input_to_nhwc` goes back to the value that is quantized, and on along first arguments to an input of the
      partition. It makes that channels last for all its users, without marking the operators in between. So a ``pad``
      pads the wrong dimensions ("Propagating input shapes failed" when the file runs), and others compute with values
      in two layouts.
    - `input_to_nchw` copies the dequantized value, so that a linear layer's input is not quantized any more
      ("Weight and Input should both be quantized").

    Here, the value that is quantized is copied. Files that worked stay the same. Delete once upstream stops at the
    value, and leaves its other users as they are.
    """
    for name, method in _DYNAMIC.items():
        setattr(compat.ChannelsLastTaggedReshapePass, name, method)


def _mended(
    upstream: Callable[..., None],
    memory_format: torch.memory_format,
    has_layout: Callable[[Node], bool],
    takes_layout: Callable[[Any, Node], bool],
) -> Callable[..., None]:
    """A method of the pass, mended; `has_layout` checks values, `takes_layout` whether an operator needs the layout."""

    @wraps(upstream)
    def mended(layouts: Any, module: GraphModule, source: Node, target: Node) -> None:
        value: Any = source
        while compat.is_dynamic_qdq(value):  # what is quantized dynamically counts
            value = value.args[0]
        if value is source:
            upstream(layouts, module, source, target)
        elif not has_layout(value):
            copy = _copy(layouts, module, value, memory_format)
            _quantize_from(copy, value, source, target, partial(takes_layout, layouts))

    return mended


def _copy(layouts: Any, module: GraphModule, value: Node, memory_format: torch.memory_format) -> Node:
    """The value in the other layout; an existing copy, if the pass has made one."""
    copy: Node | None = value.meta.get(layouts.PARTNER_NODE)
    if copy is None:
        with module.graph.inserting_after(value):
            copy = layouts.create_call_function_node(module, _COPY, (value,), memory_format=memory_format)
        layouts.tag_node(copy)
        layouts.make_partners(value, copy)
    return copy


def _quantize_from(copy: Node, value: Node, source: Node, target: Node, takes_copy: Callable[[Node], bool]) -> None:
    """Has an operator's input quantized from a copy of the value, on its own if others need the value."""
    quantize: Any = source.args[0]
    if all(takes_copy(user) for _, user in users_of(quantize)):
        for node in quantizing(quantize):
            node.replace_input_with(value, copy)
        return
    copies = copy_quantization(quantize, [source], target, {value: copy})
    target.replace_input_with(source, copies[source])
    if not source.users:
        source.graph.erase_node(source)


def users_of(quantize: Node) -> Iterator[tuple[Node, Node]]:
    """Users of a quantized value, each with the node that dequantizes it."""
    return ((dequantize, user) for dequantize in quantize.users for user in dequantize.users)


def quantizing(quantize: Node) -> list[Node]:
    """The nodes of a dynamic quantization: the choice of scale and zero point, both, and the node that uses them."""
    parameters = [node for node in quantize.all_input_nodes if node is not quantize.args[0]]
    return [parameters[0].all_input_nodes[0], *parameters, quantize]


def copy_quantization(
    quantize: Node, dequantized: Iterable[Node], before: Node, inputs: Mapping[Node, Node] = MappingProxyType({})
) -> Mapping[Node, Node]:
    """Copies nodes that quantize a value and some that dequantize it, before a node; `inputs` maps inputs to theirs."""
    copies = dict(inputs)
    with before.graph.inserting_before(before):
        for node in (*quantizing(quantize), *dequantized):
            copies[node] = before.graph.node_copy(node, lambda argument: copies.get(argument, argument))
    return copies


_DYNAMIC = {
    "input_to_nhwc": _mended(_to_nhwc, torch.channels_last, _is_nhwc, _takes_nhwc),
    "input_to_nchw": _mended(_to_nchw, torch.contiguous_format, _is_nchw, _takes_nchw),
}


_CONVOLUTION, _LINEAR = compat.edge_ops.aten.convolution.default, compat.edge_ops.aten.linear.default


@mends(
    "convolutions that share a dynamically quantized input with others reach 2 to 10 dB",
    "ChannelsLastTaggedReshapePass.call",
)
def separate_products() -> None:
    """Gives products of matrices quantizations of their own where they share a dynamically quantized input.

    For linear layers, and for convolutions that are products of matrices (with kernels of one element, and without
    stride, padding or groups), XNNPACK seems to quantize the input in another way than for other convolutions, on Arm
    (seen on QEMU's cortex-a53, cortex-a76 and max without SME) and on x86-64 with VNNI, not on x86-64 without. Where
    both share one quantization, outputs come out at 2 to 10 dB, without an error. Delete once
    `test_executorch_fails_by_itself` of its tests fails on such a machine.
    """
    compat.ChannelsLastTaggedReshapePass.call = _separated


@wraps(_call)
def _separated(layouts: Any, module: GraphModule) -> Any:
    """Replaces the pass that gives operators their layouts, since no later one changes what quantizes inputs."""
    result = _call(layouts, module)
    if _separate_products(result.graph_module.graph):
        result.graph_module.recompile()
    return result


def _separate_products(graph: Graph) -> bool:
    """Gives products their own quantizations if others share theirs; returns whether there were any."""
    changed = False
    dynamic = [node for node in graph.nodes if compat.is_dynamic_qdq(node)]
    for quantize in [node for node in dynamic if not compat.is_dynamic_qdq(node.args[0])]:
        users = list(users_of(quantize))
        products = [(dequantize, user) for dequantize, user in users if _is_product(user)]
        if not products or len(products) == len(users):
            continue
        copies = copy_quantization(quantize, dict.fromkeys(dequantize for dequantize, _ in products), quantize.next)
        for dequantize, user in products:
            user.replace_input_with(dequantize, copies[dequantize])
        for dequantize in [node for node in quantize.users if not node.users]:
            graph.erase_node(dequantize)
        changed = True
    return changed


def _is_product(node: Node) -> bool:
    if node.target is not _CONVOLUTION:
        return node.target is _LINEAR
    weight: Any = node.args[1]
    _, _, _, stride, padding, _, transposed, _, groups = node.args
    kernel = weight.meta["val"].shape[2:]
    return not transposed and groups == 1 and {*kernel, *stride} == {1} and set(padding) == {0}


@mends(
    "int8 values in two layouts, half-precision outputs of convolutions, and softmax after them are wrong or fail",
    "ChannelsLastTaggedReshapePass.insert_copy_q_dq",
    "ChannelsLastTaggedReshapePass.is_nhwc_node",
    "ChannelsLastTaggedReshapePass.is_nchw_node",
    "ChannelsLastTaggedReshapePass.memory_sensitive_ops_nchw",
)
def mend_static_layouts() -> None:
    """Mends three mistakes of the pass about statically quantized values, and one about softmax.

    - If a dequantized value is used in both layouts, `insert_copy_q_dq` gives the copy to all users, even to those that
      the pass has seen before and to those that take the other layout. A convolution whose output goes to
      ``avg_pool2d`` and to an output of the model is enough: the file fails (0x10), or computes something else if the
      sizes are equal. Here, those users keep the value.
    - It copies the node that dequantizes without its dtype: half-precision outputs of convolutions become float32, and
      the delegate writes beyond their memory. Here, the copy keeps the dtype.
    - It finds the layout of quantized inputs by their first row. Scalars have none (IndexError), and rows of
      channels-last values are not channels-last, so the file computes something else. Here, it uses the whole tensor.
    - It lets softmax take any layout, although it is computed over the last dimension, which is the channels' after a
      convolution: ``softmax(conv(x), -1)`` is wrong in floating point, too. Here, softmax takes the usual layout.

    Files that worked stay the same. Delete each once upstream replaces the input of one node only, passes ``out_dtype``
    on, uses the whole tensor, and has ``_softmax`` in `memory_sensitive_ops_nchw`.
    """
    for name, value in _STATIC.items():
        setattr(compat.ChannelsLastTaggedReshapePass, name, value)


@wraps(_insert)
def _insert_for_its_users(
    layouts: Any, module: GraphModule, before: Node, after: Node, copy: Node, q_params: Any
) -> None:
    takers = [user for user in before.users if user is not copy and _takes(layouts, user, after, copy)]
    if len(takers) + 1 < len(before.users):
        with module.graph.inserting_after(before):
            taken = module.graph.node_copy(before)
        for user in (*takers, copy):
            user.replace_input_with(before, taken)
        before = taken
    _insert(layouts, module, before, after, copy, q_params)
    (quantize,) = copy.users
    (dequantize,) = quantize.users
    dequantize.kwargs = before.kwargs


def _takes(layouts: Any, user: Node, target: Node, copy: Node) -> bool:
    """Whether a user of a value takes the copy that is made for the target, or the value itself."""
    if user is target:
        return True
    if copy.kwargs["memory_format"] != torch.channels_last:
        needs_other = layouts.requires_nhwc_input(user)
    else:
        needs_other = user.op == "output" or layouts.requires_nchw_inputs(user)
    return user > target and not needs_other


def _is_channels_last(node: Node) -> bool:
    value: Any = node.args[0].args[0] if compat.is_dequant(node) and node.args[0].args else None
    if isinstance(value, Node) and value.op == "placeholder":
        return bool(compat.ChannelsLastTaggedReshapePass._is_nhwc_tensor(value.meta["val"]))  # noqa: SLF001 - upstream's own name
    return bool(_is_nhwc(node))


_STATIC = {
    "memory_sensitive_ops_nchw": {*_usual_layout, compat.edge_ops.aten._softmax.default},  # noqa: SLF001 - the operator's name
    "insert_copy_q_dq": _insert_for_its_users,
    "is_nhwc_node": staticmethod(_is_channels_last),
    "is_nchw_node": staticmethod(lambda node: not _is_channels_last(node)),
}


_GELU, _SIGMOID = compat.edge_ops.aten.gelu.default, compat.edge_ops.aten.sigmoid.default
_ADD, _MUL = compat.edge_ops.aten.add.Tensor, compat.edge_ops.aten.mul.Tensor
_FACTOR = 2 * math.sqrt(2 / math.pi)
_COEFFICIENTS = {"gelu_linear": _FACTOR, "gelu_cubic": _FACTOR * 0.044715}
_init = compat.find("XNNPACKPassManager.__init__")


@mends('GELU with `approximate="tanh"` reaches 75 dB', "XNNPACKPassManager.__init__")
def expand_tanh_gelu() -> None:
    """Adds a pass that writes ``gelu(approximate="tanh")`` with operators that XNNPACK has.

    `GeluVisitor` (backends/xnnpack/operators/op_gelu.py) does not look at the argument, so that outputs of GPT-2,
    SigLIP or Gemma agree to some 75 dB only. ``(1 + tanh(u)) / 2`` is ``sigmoid(2u)``, so ``gelu(x)`` is
    ``x * sigmoid(x * (a + b * x * x))``. Delete once the visitor refuses the argument or knows it.
    """
    compat.XNNPACKPassManager.__init__ = _with_pass


class ExpandTanhGelu(compat.XNNPACKPass):  # type: ignore[misc]  # executorch is untyped here
    """Writes the approximation as products, a sum and a sigmoid."""

    def call(self, module: GraphModule) -> PassResult:
        gelus = [node for node in module.graph.find_nodes(op="call_function", target=_GELU) if is_approximate(node)]
        if not gelus:
            return PassResult(module, modified=False)
        linear, cubic = (self._constant(module, name, value) for name, value in _COEFFICIENTS.items())
        for node in gelus:
            _expand(node, linear, cubic)
        module.recompile()
        return PassResult(super().call(module).graph_module, modified=True)

    def _constant(self, module: GraphModule, name: str, value: float) -> Node:
        with module.graph.inserting_before(next(iter(module.graph.nodes))):
            constant: Node = compat.create_constant_placeholder(
                self.exported_program, module.graph, name, InputKind.PARAMETER, torch.tensor([value])
            )
        return constant


def is_approximate(node: Node) -> bool:
    """Whether a GELU is the approximation by ``tanh``."""
    return bool(node.kwargs.get("approximate", "none") == "tanh")


def _expand(node: Node, linear: Node, cubic: Node) -> None:
    x: Any = node.args[0]
    graph = node.graph
    with graph.inserting_before(node):
        step = graph.call_function(_MUL, (x, x))
        steps = [step]
        for target, other in ((_MUL, cubic), (_ADD, linear), (_MUL, x), (_SIGMOID, None), (_MUL, x)):
            step = graph.call_function(target, (step,) if other is None else (step, other))
            steps.append(step)
    for call in steps:
        call.meta = node.meta.copy()
    node.replace_all_uses_with(step)
    graph.erase_node(node)


@wraps(_init)
def _with_pass(manager: Any, *args: Any, **options: Any) -> None:
    _init(manager, *args, **options)
    if compat.ConvertToLinearPass in manager.passes[1:]:  # all passes, and not a choice of them
        manager.passes.insert(manager.passes.index(compat.ConvertToLinearPass), ExpandTanhGelu)


_CAT, _JOINED = compat.edge_ops.aten.cat.default, 5  # values that XNNPACK joins at once
_split = compat.find("DecomposeConcatenate.call")


@mends(
    "int8 values of different scales cannot be loaded where more than five are joined",
    "DecomposeConcatenate.call",
)
def join_in_float() -> None:
    """Has joins of more than five values split as what they are.

    `DecomposeConcatenate` (backends/xnnpack/_passes/decompose_cat.py) takes each join between integers for one that
    computes with them, even if its values have scales of their own and are dequantized before it. It has the first
    five joined in the scale of one of them ("Failed to create cat5 node"). Delete once it looks at the tags.
    """
    compat.DecomposeConcatenate.call = _split_by_tags


@wraps(_split)
def _split_by_tags(split: Any, module: GraphModule) -> PassResult:
    """Splits what is joined in floating point, so that upstream only sees the rest."""
    for node in module.graph.find_nodes(op="call_function", target=_CAT):
        values, *dimension = node.args
        if any(not compat.is_dequant(value) or compat.is_tagged_as_implicit_q_dq(value) for value in values):
            continue
        while len(values) > _JOINED:
            with module.graph.inserting_before(node):
                joined = module.graph.call_function(_CAT, (values[:_JOINED], *dimension))
            values = [joined, *values[_JOINED:]]
        node.args = (values, *dimension)
    result: PassResult = _split(split, module)
    return result


# The operator that every pattern of bilinear upsampling has, and the one of scaled dot product attention, which finds
# rows of the mask without a value.
NEEDED_BY_BILINEAR = compat.edge_ops.aten.upsample_bilinear2d.vec
NEEDED_BY_SDPA = compat.edge_ops.aten.any.dim


@mends("patterns that match nothing are compared with each partition, which takes time")
@cache
def prune_xnnpack_patterns() -> None:
    """Makes the two matching passes skip graphs without an operator that all of their patterns have.

    The first use of the patterns in a process traces six small models, which takes 2.3 s of CPU time, and each stage
    runs in a process of its own. Delete once `get_graphs` in backends/xnnpack/partition/graphs/ traces on demand.
    """
    _match_only_with(NEEDED_BY_BILINEAR, compat.ConvertToUpsampleBilinear2d, compat.bilinear_2d, "get_graphs_dict")
    _match_only_with(NEEDED_BY_SDPA, compat.ConvertToSDPAPass, compat.sdpa, "get_graphs")


def _match_only_with(needed: Any, pass_: Any, patterns: Any, getter: str) -> None:
    match: Callable[[Any, GraphModule], PassResult] = pass_.call

    @wraps(match)
    def call(self: Any, graph_module: GraphModule) -> PassResult:
        if any(node.target is needed for node in graph_module.graph.nodes):
            return match(self, graph_module)
        with patch.object(patterns, getter, dict):  # no patterns, both for callers that index and that iterate
            return match(self, graph_module)

    pass_.call = call
