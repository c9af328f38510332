"""Calling the user's evaluator, inside the worker."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from torch.utils import _pytree as pytree

from ...errors import PteforgeError, SourceError
from .source import seed_everything
from .user_code import failed

Predict = Callable[..., Any]
"""``predict(*inputs, method="forward")``: runs a method, as eager's module is called.

It returns the output where the method has one, and otherwise a tuple of all outputs; nested ones are laid out flat,
in order. State that a method keeps carries over from call to call.
"""


def score(evaluator: Mapping[str, Any], predict: Predict, what: str, *, seed: int) -> float:
    """What the evaluator returns for a model.

    Args:
        evaluator: key fields of its source; its name is under ``builder``, its arguments are under ``kwargs``.
        predict: runs the model.
        what: the model, for messages.
        seed: seeds torch, numpy and random before.

    Raises:
        SourceError: it cannot be imported, raises, or returns no number.
        PteforgeError: as `predict` raised it.
    """
    name = evaluator["builder"]
    seed_everything(seed)
    function = _imported(name)
    try:
        returned = function(predict, **evaluator["kwargs"])
    except PteforgeError:
        raise
    except Exception as error:
        raise failed(f"evaluator {name} on {what}", error) from error
    if not isinstance(returned, Real) or isinstance(returned, bool):
        raise SourceError(
            f"evaluator {name} returned {type(returned).__name__} for {what}; it must return a number, "
            "which of a tensor `.item()` gives"
        )
    if not math.isfinite(returned):
        raise SourceError(f"evaluator {name} returned {float(returned)} for {what}, which cannot be compared")
    return float(returned)


def as_returned(outputs: Sequence[Any]) -> Any:
    """Flat outputs as `Predict` returns them."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def shown_inputs(inputs: Sequence[Any]) -> str:
    """Inputs for messages: shapes of tensors, and other values as they are."""
    return ", ".join(str(tuple(v.shape)) if hasattr(v, "shape") else repr(v) for v in pytree.tree_leaves(inputs))


def _imported(name: str) -> Callable[..., Any]:
    try:
        found: Any = pkgutil.resolve_name(name)
    except Exception as error:
        raise failed(f"importing evaluator {name}", error) from error
    if not callable(found):
        raise SourceError(f"evaluator {name} is {type(found).__name__}, and not a callable that takes `predict`")
    function: Callable[..., Any] = found
    return function
