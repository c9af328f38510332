"""Keyword example inputs. ExecuTorch's runtime takes inputs by position, and so does everything after the builder."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...configs.model import MethodCall, MethodDefinition, ModelDefinition
from ...errors import SourceError


def by_position(what: str, definition: ModelDefinition) -> ModelDefinition:
    """The definition with all inputs by position: keywords follow, in the order of a method's first example.

    Modules that take keywords are replaced by shallow copies, which share weights, buffers and submodules with them.

    Raises:
        SourceError: examples of one method have different keywords, or a call in a sequence has others than they.
    """
    methods = {name: _by_position(f"{what}: method {name!r}", each) for name, each in definition.methods.items()}
    names = {name: keyword_names(each) for name, each in definition.methods.items()}
    sequences = [
        [_positional_call(f"{what}: sequence {number}", call, names.get(call.method, ())) for call in calls]
        for number, calls in enumerate(definition.sequences)
    ]
    return replace(definition, methods=methods, sequences=sequences)


def keyword_names(method: MethodDefinition) -> tuple[str, ...]:
    """Names of the inputs that a method takes by keyword."""
    return tuple(method.example_kwarg_inputs[0]) if method.example_kwarg_inputs else ()


def by_name(entries: Mapping[str, Any], method: MethodDefinition, what: str) -> list[Any]:
    """One entry per input of the first example, from those that parameters of ``forward`` are named in.

    Raises:
        SourceError: a name is not that of an input.
    """
    names = _names_of(method.module.forward, len(method.example_inputs[0]))
    if unknown := [name for name in entries if name not in names]:
        raise SourceError(f"{what} names {unknown[0]!r}; the inputs of the first example are {names}")
    return [entries.get(name) for name in names]


def _by_position(what: str, method: MethodDefinition) -> MethodDefinition:
    names = keyword_names(method)
    if not names:
        return replace(method, example_kwarg_inputs=())
    examples = method.example_inputs or [()] * len(method.example_kwarg_inputs)
    if len(examples) != len(method.example_kwarg_inputs):
        raise SourceError(
            f"{what} has {len(examples)} example_inputs and {len(method.example_kwarg_inputs)} example_kwarg_inputs; "
            "give one mapping of keywords for each example"
        )
    positional = [
        (*args, *_ordered(f"{what}: example {number}", kwargs, names))
        for number, (args, kwargs) in enumerate(zip(examples, method.example_kwarg_inputs, strict=True))
    ]
    module = _taking_all_by_position(what, method.module, examples[0], names)
    return replace(method, module=module, example_inputs=positional, example_kwarg_inputs=())


def _ordered(what: str, kwargs: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    if set(kwargs) != set(names):
        raise SourceError(f"{what} has the keywords {list(kwargs)}, and the first example of the method {list(names)}")
    return [kwargs[name] for name in names]


def _positional_call(what: str, call: MethodCall, names: Sequence[str]) -> MethodCall:
    if not call.kwargs:
        return call
    return MethodCall(call.method, (*call.inputs, *_ordered(f"{what}: {call.method!r}", call.kwargs, names)))


def _taking_all_by_position(
    what: str, module: torch.nn.Module, example: Sequence[Any], names: Sequence[str]
) -> torch.nn.Module:
    """A shallow copy whose ``forward`` takes the example's inputs, and then those of the names, by position."""
    forward = _plain_forward(module)
    first = _names_of(module.forward, len(example))
    if twice := sorted(set(first) & set(names)):
        raise SourceError(f"{what} has {twice[0]!r} by position and by keyword")

    def positional(self: torch.nn.Module, *inputs: Any) -> Any:
        return forward(self, *inputs[: len(example)], **dict(zip(names, inputs[len(example) :], strict=True)))

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *first, *names)]
    positional.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    kind = type(module)
    # Graphs name the classes of their modules: it stays that of the user.
    described = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    copied: torch.nn.Module = object.__new__(type(kind.__name__, (kind,), {**described, "forward": positional}))
    copied.__dict__.update({name: value for name, value in vars(module).items() if name != "forward"})
    return copied


def _plain_forward(module: torch.nn.Module) -> Callable[..., Any]:
    """``forward`` as a function of the module and its inputs, also where the instance has one of its own."""
    own = vars(module).get("forward")
    if own is None:
        forward: Callable[..., Any] = type(module).forward
        return forward
    return lambda _self, *args, **kwargs: own(*args, **kwargs)


def _names_of(forward: Callable[..., Any], count: int) -> list[str]:
    """Names of the first inputs that are given by position; those of ``*args`` are numbered."""
    names: list[str] = []
    for parameter in inspect.signature(forward).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{number}" for number in range(count - len(names))]
        elif parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names[:count]
