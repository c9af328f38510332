"""XNNPACK's quantizer and partitioner of executorch 1.5.1, extended; with `xnnpack_passes`, in its stages' keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter
from operator import attrgetter
from typing import Any
from unittest.mock import patch

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
from executorch.exir.backend.partitioner import PartitionResult
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import Partition
from torch.fx.passes.operator_support import create_op_support
from torchao.quantization.pt2e.observer import HistogramObserver, MinMaxObserver, MovingAverageMinMaxObserver
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, SharedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from . import compat
from .torch_export import STEPS, call_operator
from .torchao import RANGES
from .xnnpack_passes import is_approximate

_ATEN = torch.ops.aten
_IN_ONE_DIMENSION = {  # the operator for two dimensions, and by position of an argument its value for the height
    _ATEN.conv1d.default: (_ATEN.conv2d.default, {3: 1, 4: 0, 5: 1}),
    _ATEN.conv_transpose1d.default: (_ATEN.conv_transpose2d.input, {3: 1, 4: 0, 5: 0, 7: 1}),
}
_GROUPS = 6  # the position of this argument of transposed convolutions
_CONVOLUTIONS = (_ATEN.conv2d.default, _ATEN.conv_transpose2d.input)
_CLAMPS = {getattr(_ATEN, name).default for name in ("relu", "relu_", "hardtanh", "hardtanh_", "relu6", "relu6_")}
_UPSTREAMS_SMALLEST = 2**-12  # scale, also of weights
_SMALLEST = 2**-40
_LARGEST_BIAS = 2**29  # in multiples of the scales of its layer
_MOST_UNEVEN = 4  # ratio of the ranges of parts that share a scale: two bits
_OF_EACH_SAMPLE = 0.1  # by which its minimum and maximum move an average
_WITH_BIAS = (_ATEN.linear.default, *_CONVOLUTIONS, *_IN_ONE_DIMENSION)
_PADS = (_ATEN.pad.default, _ATEN.constant_pad_nd.default)
_JOINING = (_ATEN.cat.default, _ATEN.adaptive_avg_pool2d.default)
_SUMS_AND_PRODUCTS = {_ATEN.add, _ATEN.add_, _ATEN.mul, _ATEN.mul_}
_DIVISORS = {_ATEN.div: 1, _ATEN.div_: 1} | {  # what is infinite, or steepest, at zero, and the argument's position
    getattr(_ATEN, name): 0 for name in ("sqrt", "rsqrt", "reciprocal", "log", "log2", "log10", "pow")
}
_SOFTMAX = {_ATEN.softmax, _ATEN._softmax}  # noqa: SLF001 - the operator's name
_KEEPING_ZEROS = {  # what makes zeros of zeros
    getattr(_ATEN, name)
    for name in (
        *("abs", "alias", "clone", "contiguous", "dropout", "expand", "mean", "mul", "mul_", "permute", "relu"),
        *("relu_", "reshape", "squeeze", "sum", "to", "transpose", "unsqueeze", "view"),
    )
}

_NORMS = {getattr(_ATEN, name) for name in ("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")}
_CONCATENATIONS = {_ATEN.cat, _ATEN.concat, _ATEN.concatenate, _ATEN.stack, _ATEN.hstack, _ATEN.vstack}
_PRODUCTS = {_ATEN.matmul, _ATEN.bmm, _ATEN.mm}  # of which XNNPACK's quantizer takes none
_REARRANGING = {  # what returns the values of a tensor elsewhere
    getattr(_ATEN, name)
    for name in (
        *("alias", "clone", "contiguous", "detach", "expand", "flatten", "permute", "reshape", "select", "slice"),
        *("squeeze", "t", "transpose", "unflatten", "unsqueeze", "view"),
    )
}


class ExtendedXnnpackQuantizer(XNNPACKQuantizer):  # type: ignore[misc]  # executorch is untyped here
    """Takes padding with zeros, more convolutions with dynamic scales, small values, and layers that are called twice.

    XNNPACK pads integers only if they keep their scale. The quantizer gives the scale of a value to operators that
    reshape it, cut it or take its maxima (`_is_share_obs_or_fq_op` in
    backends/xnnpack/quantizer/xnnpack_quantizer_utils.py), but not to those that pad it. A ``pad`` between two
    quantized layers then has two scales, and the file cannot be loaded ("Failed to create StaticConstantPad node").
    Zeros are in the range of every scale, so nothing is lost. Delete once upstream's list has ``pad``.

    With scales that are computed at run time, it takes 2d convolutions unless a ReLU follows (it looks for both
    together, which it does for fixed scales only), and no 1d ones, which XNNPACK computes with a height of one. Delete
    each part once `test_dynamic_convolutions` passes without it.

    With fixed scales, XNNPACK computes ReLU6 and hardtanh together with the layer before them, but only ReLU shares its
    scale; no scale of activations is below 2^-12; and a layer's bias, in multiples of the scales of a call, is that of
    all its calls. Delete each part once `test_calibrated_layers_compute_what_eager_does` passes without it.
    """

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Does what upstream does, with 2d convolutions for dynamic scales, and a bias for each call for others."""
        configs = (self.global_config, *self.operator_type_config.values(), *self.module_type_config.values())
        configs += (*self.module_name_config.values(),)
        if all(_is_dynamic(config) for config in configs if config is not None):
            for node in list(model.graph.nodes):
                if node.target in _IN_ONE_DIMENSION and _is_taken(node):
                    _write_in_two_dimensions(model.graph, node)
        else:
            _give_own_biases(model)
        return super().transform_for_annotation(model)

    def _annotate_all_patterns(self, model: GraphModule, config: Any, *args: Any, **kwargs: Any) -> GraphModule:
        """Does what upstream does, but activations stay apart after dynamic scales, and share the fixed ones."""
        if _is_dynamic(config):
            with _apart_from_activations(model):
                return super()._annotate_all_patterns(model, config, *args, **kwargs)
        config = _with_scales_from(*_smallest_scales(model), config)
        with patch.object(compat.xnnpack_quantizer_utils, "is_relu_node", lambda node: node.target in _CLAMPS):
            return super()._annotate_all_patterns(model, config, *args, **kwargs)

    def annotate(self, model: GraphModule) -> GraphModule:
        """Does what upstream does, but leaves out what divides or is masked, and adds what pads and what follows it."""
        of_others = {node for node in model.graph.nodes if Q_ANNOTATION_KEY in node.meta}
        for node in _kept_in_float(model):
            node.meta.setdefault(Q_ANNOTATION_KEY, QuantizationAnnotation(_annotated=True))  # which keeps others off
        model = super().annotate(model)
        _share_scales_of_steps(model)
        padded = False
        for node in model.graph.nodes:
            annotation = node.meta.get(Q_ANNOTATION_KEY) if node not in of_others else None
            if annotation and not all(map(_is_quantizable, (node, *annotation.input_qspec_map))):
                del node.meta[Q_ANNOTATION_KEY]
            if node.target in _PADS and _pads_with_zeros(node):
                padded |= _keep_scale(node)
        if padded:
            compat.propagate_annotation(model)
        return model


def _kept_in_float(model: GraphModule) -> Iterator[Node]:
    """Sums and products that something is divided by, or whose root, logarithm or softmax is taken; and others below.

    Small ones become zero in integers, as in ``variance + epsilon``, and a division by zero has no result, which each
    kernel quantizes differently. Masks of attention are so large that all other values become zero next to them.
    XNNPACK computes none of these operators with integers, so nothing is lost.
    """
    divisors = []
    for node in model.graph.nodes:
        is_power_of_one_or_more = _packet(node) is _ATEN.pow and (isinstance(node.args[1], Node) or node.args[1] >= 1)
        if _packet(node) in _DIVISORS and not is_power_of_one_or_more:
            divisors.append(node.args[_DIVISORS[_packet(node)]])
    yield from _sums_and_products(divisors, _KEEPING_ZEROS)
    masked = [node.args[0] for node in model.graph.nodes if _packet(node) in _SOFTMAX]
    yield from _sums_and_products(masked, _KEEPING_ZEROS | _SUMS_AND_PRODUCTS)
    kept = {*_joined_for_outputs(model.graph), *_normalized(model.graph), *_uneven(model.graph)}
    kept |= set(_between_floats(model.graph, kept))
    others = (node for node in model.graph.nodes if node not in kept)
    if any(node.target in _WITH_BIAS or _packet(node) in _SUMS_AND_PRODUCTS for node in others):  # not all may go
        yield from kept


def _normalized(graph: Graph) -> Iterator[Node]:
    """Sums, products and concatenations that a norm of each row reads.

    Rows share a scale, and a norm makes all of them equally large: what int8 rounds a class token to, next to patches
    with 30 times larger values, is most of what the layer after it gets. `deit` had 0 dB, and has 27 with these left.
    """
    ahead = [node.args[0] for node in graph.nodes if _packet(node) in _NORMS]
    passing = _REARRANGING | _SUMS_AND_PRODUCTS | _CONCATENATIONS | {_ATEN.dropout}
    return _sums_and_products(ahead, passing, _SUMS_AND_PRODUCTS | _CONCATENATIONS)


def _joined_for_outputs(graph: Graph) -> Iterator[Node]:
    """Concatenations and products of two values that only outputs have, and what scales or moves them by constants.

    With one scale for boxes from 0 to 640 and scores from 0 to 1, all scores become zero. In floating point, each part
    keeps its own scale, and XNNPACK joins them as fast. Products of two values, such as the similarities of images and
    texts, are in floating point in any case, and an operator after them would only be rounded.
    """
    constant, joined, returned = set[Node](), set[Node](), set[Node]()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr" or (inputs and constant.issuperset(inputs)):
            constant.add(node)
        scales = _packet(node) in _SUMS_AND_PRODUCTS and not constant.isdisjoint(inputs)
        keeps = (scales or _packet(node) in _REARRANGING) and not joined.isdisjoint(inputs)
        if keeps or _packet(node) in _CONCATENATIONS | _PRODUCTS:
            joined.add(node)
    for node in reversed(graph.nodes):
        moves = node in joined or _packet(node) in _REARRANGING
        if node.op == "output" or (moves and node.users and returned.issuperset(node.users)):
            returned.add(node)
            if node in joined and _packet(node) not in _REARRANGING:
                yield node


def _uneven(graph: Graph) -> Iterator[Node]:
    """Concatenations of which a part is small next to others, and is read elsewhere, too.

    All parts have one scale, wherever they are read: the layers of an HGNet, which read each other's results of 2 to
    100, all had that of the largest one, since one concatenation reads all of them (12 dB, 24 with it left).
    """
    for node in graph.nodes:
        ranges = node.meta.get(RANGES, ())
        parts = zip(node.args[0], ranges, strict=True) if ranges else ()
        if any(0 < _MOST_UNEVEN * size < max(ranges) and _is_read_elsewhere(part) for part, size in parts):
            yield node


def _between_floats(graph: Graph, left: Collection[Node]) -> Iterator[Node]:
    """Sums and products of values of which one is in floating point, or that no operator with integers reads.

    Integers would only be rounded once more there: what scales queries before a product of matrices, or weighs channels
    by a sigmoid. Concatenations that are `left` are in floating point, too.
    """
    left = set(left)
    while True:
        integers, read = set[Node](), set[Node]()
        sums = [node for node in graph.nodes if _packet(node) in _SUMS_AND_PRODUCTS and node not in left]
        for node in graph.nodes:
            if _has_integers(node, left) or (_keeps_scale(node) and node.args[0] in integers):
                integers.add(node)
            elif _packet(node) in _SUMS_AND_PRODUCTS and node not in left:
                values = [value for value in node.all_input_nodes if value.op != "get_attr"]
                integers.update([node] if integers.issuperset(values) else [])
        for node in reversed(graph.nodes):
            if _has_integers(node, left) or (_keeps_scale(node) and node in read) or node in sums:
                read.update(node.all_input_nodes)
        found = [node for node in sums if node not in integers & read]
        if not found:
            return
        yield from found
        left.update(found)


def _has_integers(node: Node, left: Collection[Node]) -> bool:
    """Whether XNNPACK's quantizer takes the operator whatever comes before and after it, and nothing left it out."""
    takes = node.target in _WITH_BIAS or (node.target in _JOINING and node not in left)
    return takes and Q_ANNOTATION_KEY not in node.meta


def _keeps_scale(node: Node) -> bool:
    shares = compat.xnnpack_quantizer_utils._is_share_obs_or_fq_op  # noqa: SLF001 - upstream's own list
    return node.op == "call_function" and bool(shares(node.target))


def _is_read_elsewhere(part: Node) -> bool:
    """Whether a value has several readers, or what it is rearranged from has."""
    while len(part.users) == 1 and _packet(part) in _REARRANGING:
        part = part.args[0]
    return len(part.users) > 1


def _sums_and_products(
    ahead: list[Any], passing: Collection[Any], kinds: Collection[Any] = _SUMS_AND_PRODUCTS
) -> Iterator[Node]:
    """Those that values are computed from, or operators of other kinds, looking back through some operators."""
    seen = set()
    while ahead:
        node: Any = ahead.pop()
        if not isinstance(node, Node) or node in seen:
            continue
        seen.add(node)
        if _packet(node) in kinds:
            yield node
        if _packet(node) in passing:
            ahead += node.all_input_nodes


def _packet(node: Node) -> Any:
    """The operator without its overload; None where it has none."""
    return getattr(node.target, "overloadpacket", None)


def _is_quantizable(node: Node) -> bool:
    """Whether a node is float32 or float16, or no tensor.

    Upstream takes integers, too ("histogram_cpu" not implemented for 'Long'), also with numbers, and float64
    ("Expecting input to have dtype torch.float32").
    """
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.dtype in (torch.float32, torch.float16)


def _biases(model: GraphModule) -> Iterator[tuple[Node, Node, torch.Tensor]]:
    """Each layer with its bias, and the value of that."""
    for node in list(model.graph.nodes):
        bias = node.args[2] if node.target in _WITH_BIAS and len(node.args) > 2 else None
        if isinstance(bias, Node) and bias.op == "get_attr":
            yield node, bias, attrgetter(bias.target)(model)


def _give_own_biases(model: GraphModule) -> None:
    """Gives each call of a layer, not steps with equal scales, its own bias: XNNPACK stores multiples of its scales."""
    seen = set()
    for node, bias, value in _biases(model):
        if STEPS not in node.meta and value.data_ptr() in seen:
            name = f"{bias.target}_{node.name}".replace(".", "_")
            model.register_buffer(name, value.detach().clone())
            with model.graph.inserting_before(node):
                copy = model.graph.get_attr(name)
            copy.meta = dict(bias.meta)
            node.replace_input_with(bias, copy)
        seen.add(value.data_ptr())


def _smallest_scales(model: GraphModule) -> tuple[float, float]:
    """The smallest scales of activations and weights with which each bias, a multiple of both, has at most 30 bits.

    A channel without weights that has a bias asks for larger ones; upstream's are the largest.
    """
    layers = [(_channels(node, model), value.detach().abs().flatten().double()) for node, _, value in _biases(model)]
    smallest = _SMALLEST
    while True:
        biases = [float((bias / (weights / 127).clamp(min=smallest)).max()) for weights, bias in layers if len(bias)]
        needed = max(biases, default=0.0) / _LARGEST_BIAS
        if needed <= _UPSTREAMS_SMALLEST / 2**8 or smallest >= _UPSTREAMS_SMALLEST:
            return min(max(needed, _SMALLEST), _UPSTREAMS_SMALLEST), smallest
        smallest *= 2


def _channels(node: Node, model: GraphModule) -> torch.Tensor:
    """The largest weight of each output channel of a layer, or the least of these where groups share them.

    Zero where weights are not known yet.
    """
    if node.args[1].op != "get_attr":
        return torch.zeros(1, dtype=torch.float64)
    weight = attrgetter(node.args[1].target)(model).detach().abs().double()
    if "transpose" in str(node.target):
        return weight.transpose(0, 1).flatten(1).amax(1).amin()
    return weight.flatten(1).amax(1)


class WideHistogramObserver(HistogramObserver):  # type: ignore[misc]  # torchao is untyped here
    """Observes the range with the least squared error, also of values whose cubes are no float32.

    torchao adds up cubes of distances (`_get_norm` in quantization/pt2e/observer.py), which are infinite from 4e12 on,
    and zero below 1e-13. Those of values near one, by a power of two, choose the same range otherwise.
    """

    def _non_linear_param_search(self) -> tuple[torch.Tensor, torch.Tensor]:
        least, most = self.min_val.clone(), self.max_val.clone()
        unit = 2.0 ** torch.maximum(least.abs(), most.abs()).clamp(min=1e-30).log2().floor()
        try:
            self.min_val.copy_(least / unit)
            self.max_val.copy_(most / unit)
            found = super()._non_linear_param_search()
        finally:
            self.min_val.copy_(least)
            self.max_val.copy_(most)
        return found[0] * unit, found[1] * unit


class PercentileObserver(HistogramObserver):  # type: ignore[misc]  # torchao is untyped here
    """Observes the range of all but the outermost values, of which as many are below as above it.

    Args:
        percentile: percent of the values that are in the range, to the width of a bin.
        options: those of `HistogramObserver`.
    """

    def __init__(self, *, percentile: float, **options: Any) -> None:
        super().__init__(**options)
        self._beyond = (1 - percentile / 100) / 2

    def _non_linear_param_search(self) -> tuple[torch.Tensor, torch.Tensor]:
        shares = self.histogram.cumsum(0) / self.histogram.sum()
        first, last = int((shares <= self._beyond).sum()), int((shares < 1 - self._beyond).sum())
        width = (self.max_val - self.min_val) / self.bins
        return self.min_val + width * first, self.min_val + width * min(last + 1, self.bins)


class EntropyObserver(HistogramObserver):  # type: ignore[misc]  # torchao is untyped here
    """Observes the range with the least Kullback-Leibler divergence of the rounded histogram from the whole one.

    Source: Migacz, "8-bit Inference with TensorRT" (GPU Technology Conference 2017), here with ends of their own.
    """

    _STEPS, _LEVELS = 32, 256

    def _non_linear_param_search(self) -> tuple[torch.Tensor, torch.Tensor]:
        counts, bins = self.histogram.double(), len(self.histogram)
        width = (self.max_val - self.min_val) / self.bins
        first, last, best, least = 0, bins, (0, bins), torch.inf
        while last - first > self._LEVELS:
            if (divergence := self._divergence(counts, first, last)) < least:
                best, least = (first, last), divergence
            step = max(1, (last - first) // self._STEPS)  # off the end with fewer values
            below, above = counts[: first + step].sum(), counts[last - step :].sum()
            first, last = (first + step, last) if below < above else (first, last - step)
        return self.min_val + width * best[0], self.min_val + width * best[1]

    def _divergence(self, counts: torch.Tensor, first: int, last: int) -> float:
        clipped = counts[first:last].clone()
        clipped[0] += counts[:first].sum()
        clipped[-1] += counts[last:].sum()
        levels = torch.arange(last - first) * self._LEVELS // (last - first)
        used = (counts[first:last] > 0).double()
        of_level, bins_of_level = torch.zeros(2, self._LEVELS, dtype=torch.float64)
        of_level.index_add_(0, levels, counts[first:last])
        bins_of_level.index_add_(0, levels, used)
        rounded = (of_level / bins_of_level.clamp(min=1))[levels] * used
        wanted, given = clipped / clipped.sum(), rounded / rounded.sum().clamp(min=1e-12)
        return float((wanted * (wanted.clamp(min=1e-12) / given.clamp(min=1e-12)).log()).sum())


def with_ranges(
    config: compat.QuantizationConfig, ranges: str, percentile: float, *, symmetric: bool
) -> compat.QuantizationConfig:
    """The configuration with fixed scales from these ranges, see `tasks.targets.xnnpack.Scales`."""
    if symmetric:
        centred = replace(config.input_activation, qscheme=torch.per_tensor_symmetric)
        config = replace(config, input_activation=centred, output_activation=centred)
    observers = {
        "histogram": WideHistogramObserver.with_args(eps=_UPSTREAMS_SMALLEST),
        "entropy": EntropyObserver.with_args(),
        "min_max": MinMaxObserver.with_args(),
        "moving_average": MovingAverageMinMaxObserver.with_args(averaging_constant=_OF_EACH_SAMPLE),
        "percentile": PercentileObserver.with_args(percentile=percentile),
    }
    observed = replace(config.input_activation, observer_or_fake_quant_ctr=observers[ranges])
    return replace(config, input_activation=observed, output_activation=observed)


@cache
def _with_scales_from(
    of_activations: float, of_weights: float, config: compat.QuantizationConfig | None
) -> compat.QuantizationConfig | None:
    """The configuration with these smallest scales, if it has fixed ones."""
    if config is None or config.input_activation is None:
        return config
    smaller, weight = (
        replace(spec, observer_or_fake_quant_ctr=type(observer)(partial(observer.p, eps=smallest)))
        for spec, smallest in ((config.input_activation, of_activations), (config.weight, of_weights))
        for observer in [spec.observer_or_fake_quant_ctr]
    )
    return replace(config, input_activation=smaller, output_activation=smaller, weight=weight)


def _is_dynamic(config: Any) -> bool:
    return bool(config and config.input_activation and config.input_activation.is_dynamic)


@contextmanager
def _apart_from_activations(model: GraphModule) -> Iterator[None]:
    """Puts a node between each convolution and the ReLU that follows it, which quantizers then do not see together."""
    placed = []
    for node in list(model.graph.nodes):
        if compat.is_relu_node(node) and isinstance(node.args[0], Node) and node.args[0].target in _CONVOLUTIONS:
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
        convolution = graph.call_function(operator, (images, kernels, *rest))
        result = graph.call_function(_ATEN.squeeze.dim, (convolution, 2))
    convolution.meta = {**node.meta, "val": node.meta["val"].unsqueeze(2)}
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _share_scales_of_steps(model: GraphModule) -> None:
    """Gives all steps of a recurrent layer the scales of its first, or XNNPACK would store a bias for each step."""
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
    """Gives a value's scale to the node that pads it; returns whether the value has one."""
    value = node.args[0]
    annotation = value.meta.get(Q_ANNOTATION_KEY) if isinstance(value, Node) else None
    if annotation is None or annotation.output_qspec is None or Q_ANNOTATION_KEY in node.meta:
        return False
    shared = SharedQuantizationSpec(value)
    node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(
        input_qspec_map={value: shared}, output_qspec=shared, _annotated=True
    )
    return True


_TAG = "delegation_tag"
_COPIES = (compat.edge_ops.dim_order_ops._clone_dim_order.default, compat.edge_ops.aten.clone.default)  # noqa: SLF001 - the operator's name


def _has_one_dynamic_size(node: Node) -> bool:
    return sum(not isinstance(size, int) for size in node.meta["val"].shape) <= 1


def _keeps_layout_of_quantized(node: Node) -> bool:
    """Whether a node changes the layout of no quantized value, as ``x.to(memory_format=torch.channels_last)`` does."""
    source: Any = node.args[0]
    return source.meta["val"].dim_order() == node.meta["val"].dim_order() or not compat.is_dequant(source)


def _is_quantized_on_both_sides(node: Node) -> bool:
    """Whether padding with zeros is quantized on both sides, or on neither."""
    zeros = len(node.args) == 2 or node.args[2] == 0
    return not (zeros and compat.is_dequant(node.args[0])) or any(map(compat.is_quant, node.users))


def _is_state(weight: Any, ep: ExportedProgram) -> bool:
    """Whether a weight is a buffer that the method overwrites, or a view of one."""
    while weight.op == "call_function" and weight.all_input_nodes:
        weight = weight.all_input_nodes[0]
    signature = ep.graph_signature
    return signature.inputs_to_buffers.get(weight.name) in set(signature.buffers_to_mutate.values())


def _is_constant(weight: Any) -> bool:
    """Whether a weight is a constant that is at most laid out in another way, and not a function of a constant.

    For products that torch.nn.Linear stands for, upstream takes the first tensor that a weight is computed from for the
    weight: the mask of a pruned layer, so that ``linear(x, mask * weight)`` comes out at -18 dB. Delete once
    `find_partition_args` (partition/config/gemm_configs.py) and `ConvertToLinearPass` stop at operators that compute.
    """
    while weight.op == "call_function" and (weight.target in _LAID_OUT or compat.is_dequant(weight)):
        weight = weight.all_input_nodes[0]
    return bool(weight.op != "call_function")


_LAID_OUT = {
    *_COPIES,
    compat.edge_ops.dim_order_ops._to_dim_order_copy.default,  # noqa: SLF001 - the operator's name
    compat.edge_ops.aten._to_copy.default,  # noqa: SLF001 - as above
    *(
        getattr(compat.edge_ops.aten, name).default
        for name in ("t_copy", "permute_copy", "view_copy", "unsqueeze_copy")
    ),
    compat.edge_ops.aten.transpose_copy.int,
}


def _scales_by_sizes(node: Node) -> bool:
    """Whether a resize has the scale that follows from its sizes, for each dimension."""
    source: Any
    source, _, align_corners, *rest = node.args
    factors: Any = rest[0] if rest else node.kwargs.get("scale_factors")
    if align_corners or factors is None:
        return True
    sizes = zip(source.meta["val"].shape[2:], node.meta["val"].shape[2:], factors, strict=True)
    return all(size * factor == resized for size, resized, factor in sizes)


_EXTENDED: dict[Any, Callable[[Node, ExportedProgram], bool]] = {
    # The delegate crashes on weights that are state. Delete these three once upstream checks it.
    compat.AddmmConfig: lambda node, ep: not _is_state(node.args[2], ep),
    compat.LinearConfig: lambda node, ep: not _is_state(node.args[1], ep),
    compat.MMConfig: lambda node, ep: not _is_state(node.args[1], ep),
    # XNNPACK's passes convolve batch norms, and fail without scale and shift ("'NoneType' has no attribute").
    compat.BatchNormConfig: lambda node, _: None not in node.args[1:3],
    # A pass (backends/xnnpack/_passes/insert_pad_qdq.py) gives the scale of a quantized value to the node that pads it
    # with zeros, even if the result is needed in floating point, as in ``unfold``, and the file cannot be loaded
    # ("Failed to create StaticConstantPad node"). Delete once it does not.
    compat.ConstantPadConfig: lambda node, _: _is_quantized_on_both_sides(node),
    # XNNPACK's reshapes take one dynamic dimension ("XNNPACK reshape only supports 1 dynamic dimension"). Upstream
    # checks that of views, but not of ``unsqueeze``. XNNPACK's passes make convolutions over one dimension (batch,
    # channels, length) ones over two, with reshapes before and after. Delete these two once partition/config checks it.
    compat.UnsqueezeCopyConfig: lambda node, _: _has_one_dynamic_size(node),
    compat.ConvolutionConfig: lambda node, _: node.meta["val"].dim() != 3 or _has_one_dynamic_size(node),
    # Scalars have no approximate GELU: XNNPACK does not take their products with constants. See `expand_tanh_gelu`.
    compat.GeluConfig: lambda node, _: node.meta["val"].dim() != 0 or not is_approximate(node),
    # XNNPACK keeps dimension 2 or 3 of ``max`` ("amax.default only supports keep_dim == True"). Delete once it checks.
    compat.MaxDimConfig: lambda node, _: node.args[1] in (2, 3) and node.args[2:] == (True,),
    # XNNPACK's passes give PReLU's input channels last, so it must have four dimensions. Inputs after linear layers
    # have two ("Attempting to convert non-NHWC compatible node to NHWC"). Delete once upstream checks it.
    compat.PreluConfig: lambda node, _: bool(node.meta["val"].dim() == 4),
    # XNNPACK's passes mistake a changed layout for one of their own copies, and the file computes something else.
    # Delete once they tell these apart.
    compat.ToDimOrderCopyConfig: lambda node, _: _keeps_layout_of_quantized(node),
    # XNNPACK derives scales from sizes, and torch takes the given one. With ``scale_factor=0.3``, 64 rows become 19,
    # which is not 0.3 of 64. Delete once upstream compares them.
    compat.UpsampleBilinear2dConfig: lambda node, _: _scales_by_sizes(node),
}
"""Further conditions for XNNPACK to compute an operator, by upstream's description of the operator."""

_MOST_DIMENSIONS = 6
"""A tensor has no more (``XNN_MAX_TENSOR_DIMS``). Upstream does not check it, and the file cannot be loaded."""


def _has_few_dimensions(node: Node) -> bool:
    values = (value.meta.get("val") for value in (node, *node.all_input_nodes))
    return all(value.dim() <= _MOST_DIMENSIONS for value in values if isinstance(value, torch.Tensor))


def _extended(config: Any) -> Any:
    """The description of an operator with our checks first: upstream's check changes the nodes."""

    class Extended(config):  # type: ignore[misc]  # executorch is untyped here
        def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
            ours = config not in _EXTENDED or _EXTENDED[config](node, ep)
            if config in (compat.AddmmConfig, compat.MMConfig) and not self.force_non_static_weights_for_f32_linear:
                ours = ours and _is_constant(node.args[-1])
            return ours and _has_few_dimensions(node) and bool(super().check_constraints(node, ep))

    Extended.__name__ = config.__name__  # which nodes are labelled with
    return Extended


class ExtendedXnnpackPartitioner(XnnpackPartitioner):  # type: ignore[misc]  # executorch is untyped here
    """Partitions the branches of ``cond`` and the bodies of ``map`` and ``scan``, too, and refuses what fails.

    Upstream (backends/xnnpack/partition/xnnpack_partitioner.py) partitions only a method's own graph. Delete `_Branch`
    and the loop over branches once it also looks into control flow, and what is in `_EXTENDED` as it says.

    A branch takes weights as inputs, so they are not constants there: its linear layers and convolutions are decomposed
    for the portable kernels, unless weights may be inputs of the delegate.
    """

    def __init__(self, **options: Any) -> None:
        """Takes the options of upstream's."""
        super().__init__(configs=[*map(_extended, compat.ALL_PARTITIONER_CONFIGS)], **options)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Callable[[Node], bool]]:
        """Checks nodes in a branch against that branch, since its inputs may have names of the method's weights."""
        operators, supported = super().ops_to_not_decompose(ep)

        def check(node: Node) -> bool:
            if node.graph is ep.graph_module.graph:
                return bool(supported(node))
            branch = _Branch(node.graph.owning_module)
            return bool(super(ExtendedXnnpackPartitioner, self).ops_to_not_decompose(branch)[1](node))

        return operators, check

    def generate_partitions(self, ep: ExportedProgram) -> list[Partition]:
        """Does what upstream does, unless partitions depend on each other: see `merged_without_cycles`.

        An operator and the nodes that quantize its arguments are one group from the start, which depends on itself if
        one argument is computed from another. Nodes that several operators use are then groups of their own.
        """
        partitions: list[Partition] = super().generate_partitions(ep)
        if have_cycle(ep.graph_module.graph, partitions):
            groups = [[*group] for group in self.get_matched_nodes_from_configs(ep)]
            shared = dict.fromkeys(node for group in groups for node in group if _is_shared(node))
            apart = [[node for node in group if node not in shared] for group in groups]
            partitions = merged_without_cycles(ep.graph_module, [*filter(None, apart), *([node] for node in shared)])
        return partitions

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the method's own graph, then each branch with tags of its own; leaves surplus copies outside."""
        result = super().partition(exported_program)
        tags = dict(result.partition_tags)
        branches = list(_branches(exported_program.graph_module))
        for number, branch in enumerate(branches):
            partitioned = super().partition(_Branch(branch))
            for node in branch.graph.nodes:
                if tag := node.meta.get(_TAG):
                    node.meta[_TAG] = f"branch{number}_{tag}"
            tags |= {f"branch{number}_{tag}": spec for tag, spec in partitioned.partition_tags.items()}
        for module in (exported_program.graph_module, *branches):
            leave_in_float(module.graph)
            leave_copies_outside(module.graph)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


@dataclass(frozen=True)
class _Branch:
    """A nested graph with the attributes of an `ExportedProgram` that partitioners read: everything is an input."""

    graph_module: GraphModule
    graph_signature: ExportGraphSignature = field(default_factory=lambda: ExportGraphSignature([], []))
    state_dict: dict[str, torch.Tensor] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.graph_module.graph


def _branches(module: GraphModule) -> Iterator[GraphModule]:
    for _, branch, _ in compat.get_control_flow_submodules(module):
        yield branch
        yield from _branches(branch)


def leave_in_float(graph: Graph) -> None:
    """Computes operators in floating point that XNNPACK cannot compute with their integer inputs.

    It moves integers, joins them, and takes their maxima, only if they keep their scale. Upstream checks that for
    slices, but not for `_MOVING`, and the file cannot be loaded ("Failed to create static transpose node"). The
    quantizer gives all sides one scale, unless one belongs to a layer that has its own, as where an LSTM begins, or it
    leaves a concatenation between layers (`_uneven`). Delete once
    upstream's description of these operators compares the scales, as that of ``slice_copy`` does.

    Upstream tags the ``dequantize`` before an operator as part of it, so the operator reads the integers, and so do all
    other users of the node, even those that are not quantized. XNNPACK refuses those ("Failed to create squeeze node"),
    or a value that leaves the delegate is integers. The quantizer gives each operator that it quantizes its own node,
    but reshapes after ``to(dtype)``, as in norms of transformers, share one, and count as quantized if a layer after
    them is. It also tags the nodes around layers that it then refuses, such as convolutions whose weight is computed:
    the delegate after one takes its numbers for integers (0 dB, and differs between runs). Delete once the tag
    (backends/xnnpack/partition/config/generic_node_configs.py) is of the operator.
    """
    left = [node for node in graph.nodes if _is_left(node)]
    while left:
        for other in _around(left.pop()):
            if other.meta.pop(compat.IS_IMPLICIT_Q_DQ_TAG, False) and _is_dequantize(other):
                left += other.users


def _is_left(node: Node) -> bool:
    around = _around(node)
    scales = {other.args[1:] for other in around if node in other.users or other in node.users}
    if node.target in _MOVING and len(scales) > 1:
        return True
    shared = any(_is_shared(other) and compat.is_tagged_as_implicit_q_dq(other) for other in around)
    return (shared and not _result(node)) or any(other.meta.get(_TAG) != node.meta.get(_TAG) for other in around)


_MOVING = {getattr(compat.edge_ops.aten, name).default for name in ("permute_copy", "view_copy", "max_pool2d", "cat")}


def _around(node: Node) -> list[Node]:
    """The nodes that are computed together with an operator if it is quantized."""
    return [*filter(None, (*filter(_is_dequantize, node.all_input_nodes), _result(node)))]


def _is_shared(node: Node) -> bool:
    """Whether several operators use a value as floating point."""
    return len(node.users) > 1 and _is_dequantize(node)


def _is_dequantize(node: Node) -> bool:
    return compat.is_dequant(node) and not compat.is_dynamic_qdq(node)


def _result(node: Node) -> Node | None:
    """The ``quantize`` that is computed together with an operator, and perhaps with the activation after it."""
    for _ in range(2):
        if len(node.users) != 1:
            return None
        (node,) = node.users
        if compat.is_quant(node):
            return node if compat.is_tagged_as_implicit_q_dq(node) else None
    return None


def leave_copies_outside(graph: Graph) -> None:
    """Untags copies in a tagged graph whose original, or another copy of it, also leaves the partition.

    XNNPACK's passes remove the copy, one value becomes two outputs of the delegate, and the backend fails ("already in
    the inputs", backends/xnnpack/xnnpack_preprocess.py). `scan` has such copies, since torch lets its body not return
    one value twice. Delete once upstream compiles ``return y, y.clone()``.

    A copy that its own partition uses stays: without it, the partition would depend on its own result.
    """
    while surplus := [copy for copy in _surplus(graph) if copy.meta[_TAG] not in _user_tags(copy)]:
        for copy in surplus:
            del copy.meta[_TAG]


def _surplus(graph: Graph) -> list[Node]:
    """Yields all nodes but the first of each value that leaves its partition several times."""
    leaving: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if (tag := node.meta.get(_TAG)) is not None and any(tag != other for other in _user_tags(node)):
            leaving[_original(node)].append(node)
    return [copy for forms in leaving.values() for copy in forms[1:]]


def _original(node: Node) -> Node:
    """The node that this one copies within its partition, or the node itself."""
    while node.target in _COPIES:
        source = node.args[0]
        if not isinstance(source, Node) or source.meta.get(_TAG) != node.meta[_TAG]:
            break
        node = source
    return node


def _user_tags(node: Node) -> list[str | None]:
    return [user.meta.get(_TAG) for user in node.users]


def have_cycle(graph: Graph, partitions: Iterable[Partition]) -> bool:
    """Whether a partition depends on its own result, not counting constants: each partition that uses one copies it."""
    owners: dict[Node, Any] = {node: partition.id for partition in partitions for node in partition.nodes}
    order: TopologicalSorter[Any] = TopologicalSorter()
    for node in graph.nodes:
        owner = owners.get(node, node)
        before = {owners.get(used, used) for used in node.all_input_nodes if used.op != "placeholder"}
        order.add(owner, *(before - {owner}))
    try:
        order.prepare()
    except CycleError:
        return True
    return False


def merged_without_cycles(module: GraphModule, groups: Sequence[Sequence[Node]]) -> list[Partition]:
    """Merges groups of nodes as upstream does, but never into partitions that depend on each other.

    `GroupBasedPartitioner._can_merge_partitions` (exir/backend/canonical_partitioners/group_partitioner.py) does not
    merge two partitions if a path leaves them and comes back. It follows paths from node to node and overlooks that
    every other partition becomes one node, too: a path that enters a partition can leave it from any of its nodes. So
    two partitions can be proposed that each use a result of the other, and the one that is fused last fails ("Invalid
    partition, found dependency cycles", torch/fx/passes/utils/fuser_utils.py).

    Dynamically quantized layers that share an input make this likely: they are one partition from the start, in the
    place of the last of them in the order of merging. In Llama, the layers of queries, keys and values are merged with
    the cosines of the rotary embedding, and the permuted queries and keys with the frequencies of these cosines.

    Sound because partitions without a cycle stay as upstream proposes them, and otherwise only the choice of the nodes
    that share a partition changes. Delete once upstream's check goes through partitions.
    """
    return list(_Partitioner(module, groups).propose_partitions())


class _Partitioner(compat.GroupBasedPartitioner):  # type: ignore[misc]  # executorch is untyped here
    def __init__(self, module: GraphModule, groups: Sequence[Sequence[Node]]) -> None:
        nodes = {node for group in groups for node in group}
        supported = create_op_support(lambda _, node: node in nodes)
        super().__init__(module, supported, allows_single_node_partition=True, node_groups=groups)

    def _merge_partitions(self, partitions: dict[int, Partition], *tables: Any) -> None:
        """Repeats upstream's pass over all pairs, since a merge can make way for others."""
        count = None
        while count != len(partitions):
            count = len(partitions)
            super()._merge_partitions(partitions, *tables)

    def _can_merge_partitions(self, first: int, second: int, partitions: Mapping[int, Partition]) -> bool:
        if not super()._can_merge_partitions(first, second, partitions):
            return False
        pair = partitions[first], partitions[second]
        others = [partition.nodes for partition in partitions.values() if partition not in pair]
        return not _comes_back({node for partition in pair for node in partition.nodes}, others)


def _comes_back(merged: AbstractSet[Node], others: Iterable[Collection[Node]]) -> bool:
    """Whether a path leaves the nodes and comes back. One that enters another partition leaves it from any node."""
    partitions = {node: nodes for nodes in others for node in nodes}
    ahead = _users(merged) - merged
    passed: set[Node] = set()
    while ahead:
        node = ahead.pop()
        entered = partitions.get(node, (node,))
        passed.update(entered)
        users = _users(entered)
        if not merged.isdisjoint(users):
            return True
        ahead |= users - passed
    return False


def _users(nodes: Iterable[Node]) -> set[Node]:
    return {user for node in nodes if node.op != "placeholder" for user in node.users}
