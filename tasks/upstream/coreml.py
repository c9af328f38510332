"""Core ML of executorch 1.5.1, in its stages' keys. Functions import what they patch, since few processes need all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch.fx import GraphModule, Node

from .compat import edge_ops
from .patches import mends

Layer = Callable[..., torch.Tensor]

NORM = frozenset({torch.ops.aten.batch_norm.default})  # the operator of `torch.nn.functional.batch_norm`

_PADS = (torch.ops.aten.pad.default, edge_ops.aten.pad.default)


@mends(
    "circular padding is taken for Core ML, whose converter refuses it",
    "OperatorsSupportedForCoreMLBackend.should_override_support",
)
@cache
def decompose_circular_padding() -> None:
    """Has circular padding decomposed, for the rest of the process.

    Core ML's converter refuses it ("Pad mode should be one of {'constant', 'reflect', 'replicate'}"), and
    `_OperatorsSupportedForCoreMLBackend` (backends/apple/coreml/partition/coreml_partitioner.py) asks for the operator,
    and not for its mode. Delete once the partitioner looks at the mode, or coremltools knows it.
    """
    from .compat import OperatorsSupportedForCoreMLBackend as Support  # noqa: PLC0415 - see above

    supports = Support.should_override_support

    @wraps(supports)
    def unless_circular(support: Any, node: Node) -> bool:
        circular = node.target in _PADS and "circular" in (*node.args[2:3], node.kwargs.get("mode"))
        return circular or bool(supports(support, node))

    Support.should_override_support = unless_circular


@mends(
    "Core ML's temporary files, weights included, stay until the process ends", "CoreMLBackend.preprocess_multimethod"
)
@cache
def remove_coreml_temporary_files() -> None:
    """Makes the backend remove its temporary files when it has compiled, for the rest of the process.

    coremltools 9.0 removes its copies of the model, weights included, in functions that run at exit (models/model.py),
    and stage processes end without running them. Delete once coremltools removes them as soon as a model is saved.
    """
    from .compat import CoreMLBackend  # noqa: PLC0415 - see above

    preprocess = CoreMLBackend.preprocess_multimethod

    @wraps(preprocess)
    def call(edge_programs: Any, compile_specs: Any) -> Any:
        folder = TemporaryDirectory(prefix="pteforge-coreml-", ignore_cleanup_errors=True)
        with folder, patch.object(tempfile, "tempdir", folder.name):
            return preprocess(edge_programs, compile_specs)

    CoreMLBackend.preprocess_multimethod = staticmethod(call)


@mends("patterns that match nothing are compared with each model, which takes time", "CoreMLQuantizer.annotate")
@cache
def prune_coreml_patterns() -> None:
    """Makes the quantizer match only patterns whose operators are all in the graph, for the rest of the process.

    For each program it traces some 400 small models as patterns, one for each layer and each activation after it, which
    takes a minute of CPU time (backends/apple/coreml/quantizer/_coreml_quantizer_utils.py). Few of them have only
    operators that the program has. Delete once upstream traces on demand, or matches by operator.
    """
    from .compat import CoreMLQuantizer  # noqa: PLC0415 - see above

    annotate = CoreMLQuantizer.annotate

    @wraps(annotate)
    def call(self: Any, model: GraphModule) -> GraphModule:
        # Upstream does the same before it matches a pattern.
        model.graph.eliminate_dead_code()
        model.recompile()
        with _patterns_of({node.target for node in model.graph.nodes}):
            annotated: GraphModule = annotate(self, model)
            return annotated

    CoreMLQuantizer.annotate = call


@contextmanager
def _patterns_of(operators: set[Any]) -> Iterator[None]:
    """Patterns with other operators become None within this context, and nothing is annotated for those."""
    from .compat import coreml_quantizer_utils as upstream  # noqa: PLC0415

    def skips_none(annotate: Callable[..., Any]) -> Callable[..., Any]:
        return lambda model, pattern, *rest: [] if pattern is None else annotate(model, pattern, *rest)

    weighted, normed = upstream._get_weighted_mod_pattern, upstream._get_weighted_mod_bn_pattern  # noqa: SLF001 - private, 1.5.1
    binary = upstream.get_binary_op_act_pattern

    def weighted_pattern(layer: Layer, inputs: Any, act_fn: Layer | None = None, act_in_place: bool = False) -> Any:
        needed = layer_operators(layer, *inputs) | activation_operators(act_fn, act_in_place)
        return weighted(layer, inputs, act_fn, act_in_place) if needed <= operators else None

    def normed_pattern(layer: Layer, inputs: Any, act_fn: Layer | None = None, act_in_place: bool = False) -> Any:
        needed = layer_operators(layer, *inputs[:3]) | activation_operators(act_fn, act_in_place) | NORM
        return normed(layer, inputs, act_fn, act_in_place) if needed <= operators else None

    def binary_pattern(layer: Layer, act_fn: Layer | None = None, act_in_place: bool = False) -> Any:
        one = torch.ones(1)
        needed = layer_operators(layer, one, one) | activation_operators(act_fn, act_in_place)
        return binary(layer, act_fn, act_in_place) if needed <= operators else None

    functions: dict[str, Any] = {
        "_get_weighted_mod_pattern": weighted_pattern,
        "_get_weighted_mod_bn_pattern": normed_pattern,
        "get_binary_op_act_pattern": binary_pattern,
        "annotate_weighted_mod_pattern": skips_none(upstream.annotate_weighted_mod_pattern),
        "annotate_binary_op_act_pattern": skips_none(upstream.annotate_binary_op_act_pattern),
    }
    with patch.multiple(upstream, **functions):
        yield


def layer_operators(layer: Layer, *inputs: torch.Tensor) -> frozenset[Any]:
    """The operators that a function of tensors is exported as."""
    return _layer_operators(layer, tuple(tuple(tensor.shape) for tensor in inputs))


@cache
def activation_operators(activation: Layer | None, in_place: bool) -> frozenset[Any]:
    """The operators that an activation function is exported as; none without one."""
    if activation is None:
        return frozenset()

    def after_negation(x: torch.Tensor) -> torch.Tensor:
        negated = torch.neg(x)  # an input must not be changed in place
        return activation(negated, inplace=True) if in_place else activation(negated)

    return _layer_operators(after_negation, ((3,),)) - {torch.ops.aten.neg.default}


@cache
def _layer_operators(layer: Layer, shapes: tuple[tuple[int, ...], ...]) -> frozenset[Any]:
    class Called(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return layer(*inputs)

    program = torch.export.export(Called(), tuple(torch.ones(shape) for shape in shapes))
    return frozenset(node.target for node in program.graph.nodes if node.op == "call_function")
