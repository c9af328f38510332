"""One method of the user's model: chosen as the params say, exported, and run eagerly."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ...configs.definition import MethodDefinition
from ...errors import SourceError
from ..source_params import MethodParams
from .changed_inputs import with_changed_inputs
from .dynamic_shapes import check_entries, to_dims
from .prepared import convert_prepared, for_inference, is_prepared
from .source import BuiltModel

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


def choose_method(model: BuiltModel, params: MethodParams) -> str:
    """The name of the method that params name, its module in inference mode.

    Raises:
        SourceError: the model does not define what the params name.
    """
    methods = list(model.definition.methods)
    name = params.method or methods[0]
    if name not in methods:
        raise SourceError(f"the model has no method {name!r}; it has {methods}")
    if unknown := set(params.dynamic_shapes or ()) - set(methods):
        raise SourceError(f"dynamic_shapes names the methods {sorted(unknown)}; the model has {methods}")
    if model.program is None:
        for_inference(model.definition.methods[name].module)
    return name


def export_method(name: str, method: MethodDefinition, params: MethodParams, stage: str = "") -> ExportedProgram:
    """Exports a method with its first example. A module that PT2E has prepared is converted before.

    Its observers and fake quantization would not survive the export as something that could be converted later.

    Args:
        name: its name.
        method: the method.
        params: dynamic shapes that replace its own, and whether to trace strictly.
        stage: what has been done to its module, for messages: `` after source_transforms``.

    Raises:
        SourceError: it does not take its example inputs, or its dynamic shapes, or was prepared and never trained.
    """
    example = method.example_inputs[0]
    shapes: Any = method.dynamic_shapes
    if name in (params.dynamic_shapes or {}):
        entries = params.dynamic_shapes[name]
        check_entries(entries, example, f"method {name!r}")
        shapes = to_dims(entries)
    module = method.module
    if is_prepared(module):
        module = convert_prepared(module, f"method {name!r}")
    try:
        return torch.export.export(module, example, dynamic_shapes=shapes, strict=params.strict)
    except Exception as error:
        # Example inputs that do not fit the model are told apart from a model that cannot be exported.
        run_eager(method.module, (example, {}), f"its own example inputs of method {name!r}{stage}")
        if shapes is not None and isinstance(error, torch._dynamo.exc.UserError):  # noqa: SLF001 - has no public name
            raise SourceError(f"method {name!r} cannot be exported with its dynamic shapes: {error}") from error
        raise


def run_eager(module: torch.nn.Module, call: Call, what: str) -> list[Any]:
    """Flat outputs, before them the inputs that the module writes to; neither it nor the arguments are changed.

    Raises:
        SourceError: the module raises; `what` says on which inputs.
    """
    args, kwargs = copy.deepcopy(call)
    # The module's state must stay what it was built with; its weights do not change, and so need no copy.
    fresh = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})
    try:
        with torch.no_grad():
            leaves = pytree.tree_leaves((args, kwargs))
            outputs = with_changed_inputs(leaves, lambda: pytree.tree_leaves(fresh(*args, **kwargs)))
    except Exception as error:
        shapes = [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in pytree.tree_leaves(call)]
        raise SourceError(f"the model does not take {what}: {shapes}: {type(error).__name__}: {error}") from error
    return outputs
