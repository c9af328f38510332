"""Sequences of calls in eager: methods that share state see what others leave in it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...configs.definition import ModelDefinition
from ...errors import SourceError
from .changed_inputs import with_changed_inputs
from .prepared import for_inference


def run_sequences_in_eager(definition: ModelDefinition) -> list[list[tuple[str, list[Any], list[Any]]]]:
    """Method, flat inputs and eager's flat outputs of every call; each sequence starts from the model's first state.

    The definition's modules stay as they are.

    Raises:
        SourceError: a call names an unknown method, or a method does not take its inputs.
    """
    return [_run(definition, number) for number in range(len(definition.sequences))]


def _run(definition: ModelDefinition, number: int) -> list[tuple[str, list[Any], list[Any]]]:
    modules = {name: for_inference(method.module) for name, method in definition.methods.items()}
    weights = {id(weight): weight for module in modules.values() for weight in module.parameters()}
    fresh = copy.deepcopy(modules, weights)  # in one go, so that what modules share stays shared
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
    return with_changed_inputs(pytree.tree_leaves(inputs), lambda: pytree.tree_leaves(module(*inputs)))


def _kept(outputs: Any) -> list[Any]:
    """Flat outputs; tensors are copies, since an output may be the state that the next call changes."""
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(outputs)]
