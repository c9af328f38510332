"""export: builds the model, exports one method, and runs eager on its inputs for later comparison."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ...artifacts.digest import canonical_json
from ...artifacts.local_store import LocalStore
from ...artifacts.programs.codec import save_program
from ...artifacts.programs.values import save_value
from ...artifacts.ref import ArtifactRef
from ...configs.definition import MethodDefinition
from ...errors import SourceError
from ..keys.observed import observed_distributions, observed_modules
from ..params import ExportParams
from ..stage import Workspace
from .drawing import draw_inputs
from .dynamic_shapes import check_entries, to_dims
from .input_shapes import check_fits
from .source import BuiltModel, build, load_program_file, seed_everything


def run(inputs: Mapping[str, ArtifactRef], params: ExportParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes nothing, gives everything that later stages need to know of the model.

    - `program` (program/aten): the method;
    - `examples` (examples): flat inputs and eager's flat outputs, the examples first and then the drawn ones;
    - `methods` (model/methods): names of all methods, the first one first;
    - `constants` (model/constants): values of the constant methods;
    - `observed` (model/observed): local modules and installed packages that were loaded on the way.

    Raises:
        SourceError: the builder fails, or the example inputs do not fit the model.
    """
    del inputs
    before, path = set(sys.modules), list(sys.path)
    os.chdir(work.folder)
    seed_everything(params.seed)
    outputs = export_built(_build(params, work), params, work.store)
    observed = canonical_json(_observed(before, path, work))
    return {**outputs, "observed": work.store.put_artifact("model/observed", observed)}


def export_built(built: BuiltModel, params: ExportParams, store: LocalStore) -> dict[str, ArtifactRef]:
    """Exports one method of a model that is there already; gives what `run` gives, but for `observed`.

    Raises:
        SourceError: the model has no such method, or the example inputs do not fit it.
    """
    methods = list(built.definition.methods)
    name = params.method or methods[0]
    if name not in built.definition.methods:
        raise SourceError(f"the model has no method {name!r}; it has {methods}")
    if unknown := set(params.dynamic_shapes or ()) - set(methods):
        raise SourceError(f"dynamic_shapes names the methods {sorted(unknown)}; the model has {methods}")
    method = built.definition.methods[name]
    program = built.program
    if program is None:
        method.module.eval()
        program = _export(name, method, params)
    return {
        "program": save_program(program, kind="program/aten", store=store),
        "examples": save_value(_examples(built, name, program, params), kind="examples", store=store),
        "methods": store.put_artifact("model/methods", canonical_json(methods)),
        "constants": save_value(dict(built.definition.constant_methods), kind="model/constants", store=store),
    }


def _observed(before: set[str], path: list[str], work: Workspace) -> list[str]:
    modules = observed_modules(before, work.python_path, path)
    return sorted({*modules, *observed_distributions(before, work.python_path)})


def _build(params: ExportParams, work: Workspace) -> BuiltModel:
    if work.program_file:
        return load_program_file(work.program_file)
    return build(params.source["builder"], params.source["kwargs"])


def _export(name: str, method: MethodDefinition, params: ExportParams) -> ExportedProgram:
    example = method.example_inputs[0]
    shapes: Any = method.dynamic_shapes
    if name in (params.dynamic_shapes or {}):
        entries = params.dynamic_shapes[name]
        check_entries(entries, example, f"method {name!r}")
        shapes = to_dims(entries)
    try:
        return torch.export.export(method.module, example, dynamic_shapes=shapes, strict=params.strict)
    except Exception as error:
        # Example inputs that do not fit the model are told apart from a model that cannot be exported.
        _run_eager(method.module, (example, {}), f"its own example inputs of method {name!r}")
        if shapes is not None and isinstance(error, torch._dynamo.exc.UserError):  # noqa: SLF001 - has no public name
            raise SourceError(f"method {name!r} cannot be exported with its dynamic shapes: {error}") from error
        raise


Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


def _examples(built: BuiltModel, name: str, program: ExportedProgram, params: ExportParams) -> dict[str, Any]:
    """Flat inputs and outputs. Each run starts from the state that the model was built with."""
    method = built.definition.methods[name]
    calls: list[Call] = [(example, dict(built.keyword_inputs or {})) for example in method.example_inputs]
    for number, call in enumerate(calls):
        check_fits(program, pytree.tree_leaves(call), f"example {number} of method {name!r}")
    flat, spec = pytree.tree_flatten(calls[0])
    drawn: list[Call] = [pytree.tree_unflatten(draw, spec) for draw in draw_inputs(program, flat, params.drawn_inputs)]
    outputs = []
    for number, call in enumerate((*calls, *drawn)):
        what = f"example {number} of method {name!r}"
        if number >= len(calls):
            what = (
                f"inputs drawn for method {name!r} within its dynamic shapes, with values of its first example "
                "(narrow the shapes, or set verify.drawn_inputs to 0)"
            )
        outputs.append(_run_eager(method.module, call, what))
    return {
        "inputs": [pytree.tree_leaves(call) for call in (*calls, *drawn)],
        "outputs": outputs,
        "drawn": len(drawn),
    }


def _run_eager(module: torch.nn.Module, call: Call, what: str) -> list[Any]:
    """Flat outputs; neither the module nor the arguments are changed."""
    args, kwargs = copy.deepcopy(call)
    # The module's state must stay what it was built with; its weights do not change, and so need no copy.
    fresh = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})
    try:
        with torch.no_grad():
            result = fresh(*args, **kwargs)
    except Exception as error:
        shapes = [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in pytree.tree_leaves(call)]
        raise SourceError(f"the model does not take {what}: {shapes}: {type(error).__name__}: {error}") from error
    outputs: list[Any] = pytree.tree_leaves(result)
    return outputs
