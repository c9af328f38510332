"""Scores of models: the user's evaluator runs them, in eager or on the ExecuTorch runtime."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from executorch.runtime import Method

from ...configs.model import ModelDefinition
from ...errors import PteforgeError, SourceError
from ...formats.pte.buckets import Bucket, fit_bucket
from ..programs.weights import weights_on_use
from ..upstream.compat import pytree
from ..usercode.model_source import seed_everything, user_code_error

if TYPE_CHECKING:
    from .running import Loadable

Predict = Callable[..., Any]
"""``predict(*inputs, method="forward")``: runs a method with the arguments of the eager module.

Returns the output of a method that has one, and otherwise a flat tuple of all outputs. State that a method keeps
carries over from call to call. The attribute `methods` has the shape of the first input of each method by name, with
upper bounds of sizes that vary; it is empty for methods without inputs.
"""


def score(evaluator: Mapping[str, Any], predict: Predict, what: str, *, seed: int) -> float:
    """The score that an evaluator, given by its key fields, returns for a model.

    Raises SourceError if the evaluator cannot be imported, raises, or returns no number, and errors of `predict`.
    """
    name = evaluator["builder"]
    seed_everything(seed)
    function = _imported(name)
    try:
        returned = function(predict, **evaluator["kwargs"])
    except PteforgeError:
        raise
    except Exception as error:
        raise user_code_error(f"evaluator {name} on {what}", error) from error
    if not isinstance(returned, Real) or isinstance(returned, bool):
        raise SourceError(
            f"evaluator {name} returned {type(returned).__name__} for {what}; it must return a number, "
            "which of a tensor `.item()` gives"
        )
    if not math.isfinite(returned):
        raise SourceError(f"evaluator {name} returned {float(returned)} for {what}, which cannot be compared")
    return float(returned)


def _as_returned(outputs: Sequence[Any]) -> Any:
    """Flat outputs as `Predict` returns them."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _describe_inputs(inputs: Sequence[Any]) -> str:
    """Inputs for messages: shapes of tensors, and other values as they are."""
    return ", ".join(str(tuple(v.shape)) if hasattr(v, "shape") else repr(v) for v in pytree.tree_leaves(inputs))


def _imported(name: str) -> Callable[..., Any]:
    try:
        evaluator: Callable[..., Any] = pkgutil.resolve_name(name)
    except Exception as error:
        raise user_code_error(f"importing evaluator {name}", error) from error
    if not callable(evaluator):
        raise SourceError(f"evaluator {name} is {type(evaluator).__name__}, and not a callable that takes `predict`")
    return evaluator


def loaded_predict(payload: Loadable, what: str, buckets: Mapping[str, Sequence[Bucket]]) -> Predict:
    """Runs a payload, each method loaded once, as on a device; of methods with `buckets`, the one that inputs fit.

    Raises PteforgeError if the runtime cannot load the payload; so does `predict` if the runtime cannot run it.
    """
    try:
        program = payload.load()
    except RuntimeError as error:
        raise PteforgeError(f"the runtime cannot load {what}: {error}") from error
    signatures = payload.signatures()
    methods: dict[str, Method] = {}

    def run(inputs: Sequence[Any], method: str) -> Sequence[Any]:
        if method not in program.method_names:
            raise SourceError(f"the evaluator runs the method {method!r}; {what} has {sorted(program.method_names)}")
        try:
            if method not in methods:
                methods[method] = program.load_method(method)
            outputs: Sequence[Any] = methods[method].execute(signatures[method].lay_out(pytree.tree_leaves(inputs)))
        except RuntimeError as error:
            raise PteforgeError(
                f"the runtime cannot run method {method!r} of {what} on {_describe_inputs(inputs)}: {error}"
            ) from error
        return outputs

    def predict(*inputs: Any, method: str = "forward") -> Any:  # no cycle: its program ends with it
        if method not in buckets:
            return _as_returned(run(inputs, method))
        flat = pytree.tree_leaves(inputs)
        bucket, padded = fit_bucket(buckets[method], flat)
        return _as_returned(bucket.cut(flat, run(padded, bucket.name)))

    first = {name: getattr(next(iter(method.inputs), None), "shape", ()) for name, method in signatures.items()}
    return _with_methods(predict, first | {name: first[parts[-1].name] for name, parts in buckets.items()})


def eager_predict(definition: ModelDefinition) -> Predict:
    """Runs the eager modules, which keep their state."""

    def predict(*inputs: Any, method: str = "forward") -> Any:
        if method in definition.constant_methods:
            return _as_returned(pytree.tree_leaves(definition.constant_methods[method]))
        if method not in definition.methods:
            known = [*definition.methods, *definition.constant_methods]
            raise SourceError(f"the evaluator runs the method {method!r}; the model has {known}")
        try:
            with torch.no_grad(), weights_on_use():
                outputs = definition.methods[method].module(*inputs)
        except Exception as error:
            raise SourceError(
                f"the eager model does not take what the evaluator gives method {method!r}, "
                f"{_describe_inputs(inputs)}: {type(error).__name__}: {error}"
            ) from error
        return _as_returned(pytree.tree_leaves(outputs))

    first = {name: pytree.tree_leaves(method.example_inputs[0])[0] for name, method in definition.methods.items()}
    shapes = {name: tuple(getattr(value, "shape", ())) for name, value in first.items()}
    return _with_methods(predict, shapes | dict.fromkeys(definition.constant_methods, ()))


def _with_methods(predict: Predict, shapes: Mapping[str, tuple[int, ...]]) -> Predict:
    predict.methods = shapes  # type: ignore[attr-defined]
    return predict
