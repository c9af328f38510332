"""Eager runs of a model, which its exported programs and files are compared with."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ...configs.definition import ModelDefinition
from ...errors import SourceError
from .copies import copy_module, copy_modules
from .inputs import check_fits, prepend_mutated_inputs, random_inputs
from .model_source import BuiltModel
from .prepared import for_inference

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


def eager_examples(model: BuiltModel, name: str, program: ExportedProgram, drawn_inputs: int) -> dict[str, Any]:
    """Flat inputs and outputs; each run starts from the state that the model was built with.

    Returns:
        ``inputs`` and ``outputs``, the examples first; ``drawn``, the number of random inputs; ``rounding``, where the
        program computes in a 16-bit dtype; ``random``, operators that draw numbers, where there are any; ``sequences``
        with the first method of a model that has any.

    Raises:
        SourceError: an input does not fit the program, or eager fails on it.
    """
    method = model.definition.methods[name]
    calls: list[Call] = [(example, dict(model.keyword_inputs or {})) for example in method.example_inputs]
    for number, call in enumerate(calls):
        check_fits(program, pytree.tree_leaves(call), f"example {number} of method {name!r}")
    flat, spec = pytree.tree_flatten(calls[0])
    drawn: list[Call] = [pytree.tree_unflatten(draw, spec) for draw in random_inputs(program, flat, drawn_inputs)]
    outputs = []
    for number, call in enumerate((*calls, *drawn)):
        what = f"example {number} of method {name!r}"
        if number >= len(calls):
            what = (
                f"inputs drawn for method {name!r} within its dynamic shapes, with values of its first example "
                "(narrow the shapes, or set verify.drawn_inputs to 0)"
            )
        outputs.append(run_eager(method.module, call, what))
    stored = {
        "inputs": [pytree.tree_leaves(call) for call in (*calls, *drawn)],
        "outputs": outputs,
        "drawn": len(drawn),
    }
    if rounding := _rounding_of(program):
        stored["rounding"] = rounding
    if drawing := sorted({str(node.target) for node in _calls(program) if _draws(node)}):
        stored["random"] = drawing
    if model.definition.sequences and name == next(iter(model.definition.methods)):
        stored["sequences"] = run_sequences_in_eager(model.definition)
    return stored


_ROUNDED = {"torch.bfloat16": "bfloat16", "torch.float16": "float16"}
_ORDER = ("bfloat16", "int8", "float16")  # the coarsest first
_QUANTIZE = "quantized_decomposed.quantize_per_token.default"  # by scales that are computed on the way
_CONVERSIONS = (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype, torch.ops.aten.to.dtype_layout)  # noqa: SLF001


def _rounding_of(program: ExportedProgram) -> str:
    """The coarsest that an ATen program computes in of ``bfloat16``, ``int8`` and ``float16``; empty for none.

    A value may be rounded to int8 in another way than eager's, which differs in the last digits.
    """
    computed = {
        "int8" if str(node.target) == _QUANTIZE else _ROUNDED.get(str(node.meta["val"].dtype), "")
        for node in _calls(program)
        if node.target not in _CONVERSIONS and isinstance(node.meta.get("val"), torch.Tensor)
    }
    return next((name for name in _ORDER if name in computed), "")


def _calls(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    """Calls of functions in a program, those in branches and loops included."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from (node for node in module.graph.nodes if node.op == "call_function")


def _draws(node: torch.fx.Node) -> bool:
    """Whether an operator draws random numbers: dropout, for one, does so in training only."""
    if not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 - it has no public name
        return False
    arguments = node.target._schema.arguments  # noqa: SLF001 - overloads have no public schema
    given = {each.name: value for each, value in zip(arguments, node.args, strict=False)} | node.kwargs
    values = {each.name: given.get(each.name, each.default_value) for each in arguments}
    if "train" in values or "dropout_p" in values:
        return values.get("train") is not False and any(values.get(name) for name in ("p", "dropout", "dropout_p"))
    return torch.Tag.nondeterministic_seeded in node.target.tags


def run_eager(module: torch.nn.Module, call: Call, what: str) -> list[Any]:
    """Flat outputs, preceded by the inputs that the module writes to; neither it nor the arguments are changed.

    Raises:
        SourceError: the module raises; `what` says on which inputs.
    """
    args, kwargs = copy.deepcopy(call)
    fresh = copy_module(module)  # the module's state must stay what it was built with
    try:
        with torch.no_grad():
            leaves = pytree.tree_leaves((args, kwargs))
            outputs = prepend_mutated_inputs(leaves, lambda: pytree.tree_leaves(fresh(*args, **kwargs)))
    except Exception as error:
        shapes = [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in pytree.tree_leaves(call)]
        raise SourceError(f"the model does not take {what}: {shapes}: {type(error).__name__}: {error}") from error
    return outputs


def run_sequences_in_eager(definition: ModelDefinition) -> list[list[tuple[str, list[Any], list[Any]]]]:
    """Method, flat inputs and eager's flat outputs of every call; each sequence starts from the model's first state.

    The definition's modules stay as they are.

    Raises:
        SourceError: a call names an unknown method, or a method does not take its inputs.
    """
    return [_run(definition, number) for number in range(len(definition.sequences))]


def _run(definition: ModelDefinition, number: int) -> list[tuple[str, list[Any], list[Any]]]:
    modules = {name: for_inference(method.module) for name, method in definition.methods.items()}
    fresh = copy_modules(modules)
    calls = []
    for position, call in enumerate(definition.sequences[number]):
        if call.method not in fresh:
            raise SourceError(f"sequence {number} calls {call.method!r}; the model's methods are {list(modules)}")
        try:
            with torch.no_grad():
                outputs = _called(fresh[call.method], copy.deepcopy(call.inputs))
        except Exception as error:
            raise SourceError(
                f"sequence {number}, call {position}: method {call.method!r} does not take its inputs: "
                f"{type(error).__name__}: {error}"
            ) from error
        calls.append((call.method, pytree.tree_leaves(call.inputs), _kept(outputs)))
    return calls


def _called(module: torch.nn.Module, inputs: tuple[Any, ...]) -> list[Any]:
    return prepend_mutated_inputs(pytree.tree_leaves(inputs), lambda: pytree.tree_leaves(module(*inputs)))


def _kept(outputs: Any) -> list[Any]:
    """Flat outputs; tensors are copies, since an output may be the state that the next call changes."""
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(outputs)]
