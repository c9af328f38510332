"""Quantization of exported programs by PT2E."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torchao.quantization.pt2e import ObserverOrFakeQuantize
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import ComposableQuantizer, QuantizationAnnotation, Quantizer
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from ...configs.model import MethodDefinition
from ...errors import SourceError, TargetError
from ..engine.stage import CallableParams
from ..export.batch_norms import WITH_WEIGHTS
from ..export.eager import buffers_written_in
from ..export.method import Shapes, export_method
from ..export.sizes import dynamic_sizes, export_again, sizes_collection
from ..results.quantization import SmoothedLayer, WidenedRange
from ..targets import TargetParams
from ..targets.find import fold_weights, knows_linear_only, make_quantizer
from ..upstream.compat import pytree
from ..upstream.torch_export import add_constant, whole_dynamic_quantization
from ..upstream.torchao import RANGES
from ..usercode.recipe_functions import node_filter, run_graph_passes
from .biases import correct_biases
from .linear_layers import unroll_recurrent_layers, write_as_linear
from .smoothing import smooth

_FEW = 8  # samples, below which a quarter of them says nothing
_WIDENED = 1.25
_CHANGED_ON = 8  # samples, by which layers are changed
_OPERATORS = (torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor)
_PREFIX = "_integer_scalar_"


def hide_integer_scalars(module: GraphModule) -> None:
    """Replaces numbers in the arithmetic of integers by integer tensors.

    Quantizers would make floats of the numbers, and so of positions computed with them, which then cannot index.
    """
    names = (f"{_PREFIX}{number}" for number in itertools.count())
    for node in list(module.graph.nodes):
        fake = node.meta.get("val")  # a node that a recipe's pass has added may have none
        if node.op != "call_function" or node.target not in _OPERATORS or fake is None or fake.is_floating_point():
            continue
        for number in [argument for argument in node.args if isinstance(argument, int)]:
            with module.graph.inserting_before(node):
                constant = add_constant(module, next(names), torch.tensor(number), like=node)
            node.args = tuple(constant if argument is number else argument for argument in node.args)
    module.recompile()


def restore_integer_scalars(module: GraphModule) -> None:
    """Undoes `hide_integer_scalars`."""
    for node in list(module.graph.nodes):
        if node.op != "get_attr" or not str(node.target).startswith(_PREFIX):
            continue
        number = module.get_buffer(str(node.target)).item()
        for user in list(node.users):
            user.args = tuple(number if argument is node else argument for argument in user.args)
        module.graph.erase_node(node)
        delattr(module, str(node.target))
    module.recompile()


def _leave_out(node: Node) -> None:
    """Annotates an operator so that quantizers leave it: an annotation without specifications quantizes nothing.

    Quantizers leave alone what is annotated, as `ComposableQuantizer` relies on.
    """
    node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(_annotated=True)


class LeftOut(Quantizer):  # type: ignore[misc]  # torchao is untyped here
    """Runs before other quantizers, so that they leave the operators inside modules that a pattern matches."""

    def __init__(self, patterns: Sequence[str]) -> None:
        super().__init__()
        self._patterns = patterns

    def annotate(self, model: GraphModule) -> GraphModule:
        for node in model.graph.nodes:
            if node.op == "call_function" and is_inside(node, self._patterns):
                _leave_out(node)
        return model

    def validate(self, model: GraphModule) -> None:
        """Everything is valid."""


def is_inside(node: Node, patterns: Collection[str]) -> bool:
    """Whether an operator is inside a module that a pattern matches."""
    modules = (str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values())
    return any(fnmatchcase(module, pattern) for module in modules for pattern in patterns)


def quantize(  # noqa: PLR0913 - what quantization depends on
    program: ExportedProgram,
    example: Sequence[Any],
    samples: Iterable[Sequence[Any]],
    quantizers: Sequence[TargetParams],
    *,
    passes: Mapping[str, Sequence[CallableParams]] = MappingProxyType({}),
    filters: Mapping[int, CallableParams] = MappingProxyType({}),
    exclude: Sequence[str] = (),
    shaped: ExportedProgram | None = None,
    state: Collection[str] = (),
    count: int = 0,
    smooths: bool = False,
    corrects: bool = False,
) -> tuple[ExportedProgram, dict[str, Any]]:
    """Quantizes a program; returns one that is quantized already, as by QAT, as it is.

    Also returns fields of `Quantization`: the activations whose range the last quarter of the samples has widened by
    more than a quarter, if there are at least eight samples; and the layers that are smoothed or have other biases.

    Args:
        program: takes the samples.
        example: flat inputs to export the result with.
        samples: flat inputs for calibration, taken one after another.
        quantizers: targets that the quantizers come from, the first choice first.
        passes: functions over the module, by field of the recipe's `quantize` (see `run_graph_passes`).
        filters: by position of a quantizer, a function that tells for each node whether to quantize it.
        exclude: patterns of the modules to leave in floating point.
        shaped: the program whose dynamic sizes the result has; by default those of `program`.
        state: names of buffers that other methods change.
        count: the number of samples; 0 if it does not matter.
        smooths: whether scales are moved between inputs and weights of layers; see `smoothing.smooth`.
        corrects: whether biases make up for rounded weights; see `biases.correct_biases`.

    Raises:
        TargetError: there is nothing to quantize.
        SourceError: a function cannot be imported, raises, or does not return a module.
    """
    if any(str(node.target).rpartition(".")[0] in _QUANTIZING for node in program.graph.nodes):
        return program, {}
    module = run_graph_passes(passes, "pre_prepare_passes", program.module(check_guards=False))
    hide_integer_scalars(module)
    if knows_linear_only(quantizers):
        unroll_recurrent_layers(module)
        write_as_linear(module)
    _leave_computed_weights(module)
    changed = buffers_written_in(module).union(state)
    initial = {name: buffer.clone() for name, buffer in module.named_buffers() if name in changed}
    taken = list(itertools.islice(samples := iter(samples), _CHANGED_ON if smooths or corrects else 1))
    left = {node for node in module.graph.nodes if Q_ANNOTATION_KEY in node.meta or is_inside(node, exclude)}
    smoothed = _smooth(module, taken, quantizers, left) if smooths else []
    _set_buffers(module, initial)
    _note_ranges(module, taken[0])
    _set_buffers(module, initial)
    node_filters = {position: node_filter(function, position) for position, function in filters.items()}
    quantizer = make_quantizer(quantizers, node_filters)
    if exclude:
        quantizer = ComposableQuantizer([LeftOut(exclude), quantizer])
    prepared = prepare_pt2e(module, quantizer)
    if lost := sorted(initial.keys() - {name for name, _ in prepared.named_buffers()}):
        names = " and ".join(dict.fromkeys(quantizer.name for quantizer in quantizers))
        raise TargetError(
            f"the quantizer of {names} takes buffers for constants, and the model changes {', '.join(lost)}; pass its "
            "state as inputs and outputs"
        )
    _leave_state_in_floating_point(prepared, initial.keys())
    if not any(isinstance(module, ObserverOrFakeQuantize) for module in prepared.modules()):
        names = " and ".join(dict.fromkeys(quantizer.name for quantizer in quantizers))
        raise TargetError(
            f"the quantizer of {names} finds no operator in the program that it could quantize; "
            "where other methods have some, name those in the recipe's `quantize.methods`"
            + ("; `quantize.exclude` may leave out all" if exclude else "")
        )
    corrected = correct_biases(prepared, taken) if corrects else []
    _set_buffers(prepared, initial)
    prepared = run_graph_passes(passes, "post_prepare_passes", prepared)
    before: Mapping[str, float] = {}
    with torch.no_grad():
        for number, sample in enumerate(itertools.chain(taken, samples)):
            if count >= _FEW and number == count - count // 4:
                before = _widths(prepared)
            args, kwargs = pytree.tree_unflatten(list(sample), program.call_spec.in_spec)
            prepared(*args, **kwargs)
        after = _widths(prepared)
        prepared = run_graph_passes(passes, "pre_convert_passes", prepared)
        with whole_dynamic_quantization():
            converted = convert_pt2e(prepared, fold_quantize=fold_weights(quantizers))
        _set_buffers(converted, initial)  # samples have changed them, and so has folding, which runs operators
    restore_integer_scalars(converted)
    converted = run_graph_passes(passes, "post_convert_passes", converted)
    factors = {name: after[name] / width for name, width in before.items() if width and name in after}
    widened = [WidenedRange(name, factor) for name, factor in factors.items() if factor > _WIDENED]
    widened.sort(key=lambda each: -each.factor)
    again = export_again(converted, shaped or program, example, program.call_spec.in_spec, strict=False)
    return again, {"widened": tuple(widened), "smoothed": tuple(smoothed), "corrected": tuple(corrected)}


def _smooth(
    module: GraphModule, samples: Sequence[Any], quantizers: Sequence[TargetParams], left: Collection[Node]
) -> list[SmoothedLayer]:
    """Moves scales to the weights of all layers but those that are left in floating point, as are added operators."""
    by_row = all(quantizer.options.get("dynamic") for quantizer in quantizers)
    smoothed, added = smooth(module, samples, by_row=by_row, leaves=left.__contains__)
    for node in added:
        _leave_out(node)
    return smoothed


def _widths(prepared: GraphModule) -> dict[str, float]:
    """The widths of the ranges that observers have seen, of activations with one scale, by module or operator."""
    widths: dict[str, float] = {}
    for node in prepared.graph.nodes:
        observer = prepared.get_submodule(node.target) if node.op == "call_module" else None
        bounds = [getattr(observer, name, None) for name in ("min_val", "max_val")]
        ends = [float(bound) for bound in bounds if isinstance(bound, torch.Tensor) and bound.numel() == 1]
        if len(ends) == 2 and all(map(math.isfinite, ends)):
            modules = node.args[0].meta.get("nn_module_stack") or {}
            path = next((str(path) for path, _ in reversed(modules.values()) if path), "")
            name = path or node.args[0].name
            widths[name] = max(widths.get(name, 0.0), ends[1] - ends[0])
    return widths


def _set_buffers(module: GraphModule, values: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            module.get_buffer(name).copy_(value)


def _joins(node: Node) -> bool:
    """Whether an operator takes a list of values first, not of numbers such as sizes."""
    parts = node.args[0] if node.args else None
    return isinstance(parts, list | tuple) and bool(parts) and all(isinstance(part, Node) for part in parts)


def _note_ranges(module: GraphModule, sample: Sequence[Any]) -> None:
    """Gives concatenations `RANGES`, for quantizers, which see no values; runs the module if it has some."""
    joining = {node for node in module.graph.nodes if node.op == "call_function" and _joins(node)}

    class Noting(Interpreter):  # type: ignore[misc]  # torch.fx is untyped here
        def run_node(self, n: Node) -> Any:
            if n in joining:
                parts = [self.env[part] for part in n.args[0]]
                if all(isinstance(part, torch.Tensor) and part.is_floating_point() and part.numel() for part in parts):
                    n.meta[RANGES] = tuple(float(part.abs().max()) for part in parts)
            return super().run_node(n)

    if joining:
        with torch.no_grad():
            Noting(module).run(*sample, enable_io_processing=False)


def _constants(module: GraphModule) -> set[Node]:
    """Attributes, and what is computed from them alone."""
    constant = set[Node]()
    for node in module.graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr" or (inputs and constant.issuperset(inputs)):
            constant.add(node)
    return constant


def _leave_computed_weights(module: GraphModule) -> None:
    """Annotates layers whose weight is an input, or computed from one, so that quantizers leave them.

    They would quantize it in each call, by channel, for which there is no kernel ("scale is not double type").
    """
    constant = _constants(module)
    for node in module.graph.nodes:
        if getattr(node.target, "overloadpacket", None) in WITH_WEIGHTS and node.args[1] not in constant:
            _leave_out(node)


def _leave_state_in_floating_point(prepared: GraphModule, names: Collection[str]) -> None:
    """Removes observers of buffers that change, and of what is computed from them and constants alone.

    PT2E takes all buffers for constants, and would compute such values once, when it converts.
    """
    constant, stateful = _constants(prepared), set[Node]()
    for node in list(prepared.graph.nodes):
        if node.target in names or not stateful.isdisjoint(node.all_input_nodes):
            stateful.add(node)
        observes = node.op == "call_module" and isinstance(prepared.get_submodule(node.target), ObserverOrFakeQuantize)
        if observes and node in constant & stateful:
            for user in node.users:
                if annotation := user.meta.get(Q_ANNOTATION_KEY):
                    annotation.input_qspec_map.pop(node.args[0], None)
            node.replace_all_uses_with(node.args[0])
            prepared.graph.erase_node(node)
    prepared.recompile()


def export_for_any_batch(
    name: str, method: MethodDefinition, shapes: Shapes, *, strict: bool, state: str = ""
) -> ExportedProgram:
    """Exports a method, as `export_method` does, with any size of the first dimension of its first tensor.

    Other tensors of the same first size vary with it. Raises SourceError if the method cannot be exported like that.
    """
    program = export_method(name, method, shapes, strict=strict, state=state)
    flat, structure = pytree.tree_flatten(method.example_inputs[0])
    batch = next((value.shape[0] for value in flat if isinstance(value, torch.Tensor) and value.dim()), None)
    sizes = dynamic_sizes(program)
    fixed = [
        isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == batch and 0 not in dynamic
        for value, dynamic in zip(flat, sizes, strict=True)
    ]
    if not any(fixed):
        return program
    any_size = Dim("batch", min=1)
    sizes = [{**dynamic, 0: any_size} if fix else dynamic for dynamic, fix in zip(sizes, fixed, strict=True)]
    if batch == 1:  # torch.export takes a single one for a constant
        flat = [torch.cat([value, value]) if fix else value for value, fix in zip(flat, fixed, strict=True)]
    example = pytree.tree_unflatten(flat, structure)
    method = replace(method, example_inputs=[example], dynamic_shapes=sizes_collection(flat, sizes))
    try:
        return export_method(name, method, None, strict=strict, state=state)
    except Exception as error:
        raise SourceError(
            f"`quantize.dynamic_batch_size`: method {name!r} cannot be exported for any size of the first dimension: "
            f"{error}; leave it out, and give calibration samples of the example's size"
        ) from error


_QUANTIZING = {
    f"quantized_decomposed.{prefix}quantize_per_{what}" for prefix in ("", "de") for what in ("tensor", "channel")
}
"""What PT2E puts around operators. Source transforms may bring others, such as those for groups and for embeddings."""
