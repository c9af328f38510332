"""Core ML's quantizer of executorch 1.5.1 traces patterns that a graph cannot contain; with this patch it does not.

For each program it traces some 400 small models as patterns, one for each layer and each activation after it, which
takes a minute of CPU time (backends/apple/coreml/quantizer/_coreml_quantizer_utils.py). Few of them have only operators
that the program has. Delete once upstream traces on demand, or matches by operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from executorch.backends.apple.coreml.quantizer import _coreml_quantizer_utils as upstream
from executorch.backends.apple.coreml.quantizer import coreml_quantizer
from torch.fx import GraphModule

Layer = Callable[..., torch.Tensor]

NORM = frozenset({torch.ops.aten.batch_norm.default})
"""The operator of `torch.nn.functional.batch_norm`."""


def prune_coreml_patterns() -> None:
    """Makes the quantizer match only patterns whose operators are all in the graph. Idempotent."""
    annotate = coreml_quantizer.CoreMLQuantizer.annotate
    if hasattr(annotate, "__wrapped__"):
        return

    @wraps(annotate)
    def call(self: Any, model: GraphModule) -> GraphModule:
        # Upstream does the same before it matches a pattern.
        model.graph.eliminate_dead_code()
        model.recompile()
        with _patterns_of({node.target for node in model.graph.nodes}):
            annotated: GraphModule = annotate(self, model)
            return annotated

    coreml_quantizer.CoreMLQuantizer.annotate = call


@contextmanager
def _patterns_of(operators: set[Any]) -> Iterator[None]:
    """Patterns with other operators become None within this context, and nothing is annotated for those."""

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

    functions = {
        "_get_weighted_mod_pattern": weighted_pattern,
        "_get_weighted_mod_bn_pattern": normed_pattern,
        "get_binary_op_act_pattern": binary_pattern,
        "annotate_weighted_mod_pattern": skips_none(upstream.annotate_weighted_mod_pattern),
        "annotate_binary_op_act_pattern": skips_none(upstream.annotate_binary_op_act_pattern),
    }
    before = {name: getattr(upstream, name) for name in functions}
    try:
        vars(upstream).update(functions)
        yield
    finally:
        vars(upstream).update(before)


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
