"""export: builds the model, exports one method, and runs eager on its inputs for later comparison."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ...artifacts.digest import canonical_json
from ...artifacts.programs.codec import save_program
from ...artifacts.programs.values import save_value
from ...artifacts.ref import ArtifactRef
from ...configs.definition import MethodDefinition
from ...errors import SourceError
from ..keys.observed import observed_distributions, observed_modules
from ..params import ExportParams
from ..stage import Workspace
from .drawing import draw_inputs
from .dynamic_shapes import to_dims
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
    built = _build(params, work)
    methods = list(built.definition.methods)
    name = params.method or methods[0]
    if name not in built.definition.methods:
        raise SourceError(f"the model has no method {name!r}; it has {methods}")
    method = built.definition.methods[name]
    program = built.program
    if program is None:
        method.module.eval()
        program = _export(name, method, params)
    store = work.store
    return {
        "program": save_program(program, kind="program/aten", store=store),
        "examples": save_value(_examples(built, name, program, params), kind="examples", store=store),
        "methods": store.put_artifact("model/methods", canonical_json(methods)),
        "constants": save_value(dict(built.definition.constant_methods), kind="model/constants", store=store),
        "observed": store.put_artifact("model/observed", canonical_json(_observed(before, path, work))),
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
    shapes: Any = (
        to_dims(params.dynamic_shapes[name]) if name in (params.dynamic_shapes or {}) else method.dynamic_shapes
    )
    try:
        return torch.export.export(method.module, example, dynamic_shapes=shapes, strict=params.strict)
    except Exception:
        _check_eager_takes(name, method.module, example)
        raise


def _check_eager_takes(name: str, module: torch.nn.Module, example: tuple[Any, ...]) -> None:
    """Tells example inputs that do not fit the model apart from a model that cannot be exported."""
    try:
        with torch.no_grad():
            copy.deepcopy(module)(*example)
    except Exception as error:
        shapes = [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in pytree.tree_leaves(example)]
        raise SourceError(
            f"method {name!r} does not take its own example inputs {shapes}: {type(error).__name__}: {error}"
        ) from error


def _examples(built: BuiltModel, name: str, program: ExportedProgram, params: ExportParams) -> dict[str, Any]:
    """Flat inputs and outputs. Each run starts from the state that the model was built with."""
    method = built.definition.methods[name]
    kwargs = dict(built.keyword_inputs or {})
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [(example, kwargs) for example in method.example_inputs]
    flat, spec = pytree.tree_flatten(calls[0])
    drawn = draw_inputs(program, flat, params.drawn_inputs)
    calls += [pytree.tree_unflatten(values, spec) for values in drawn]
    stateful = bool(program.graph_signature.buffers_to_mutate)
    outputs = []
    for args, keywords in calls:
        module = copy.deepcopy(method.module) if stateful else method.module
        outputs.append(_run_eager(name, module, args, keywords))
    return {
        "inputs": [pytree.tree_leaves(call) for call in calls],
        "outputs": outputs,
        "drawn": len(drawn),
    }


def _run_eager(name: str, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    # torch.export may hand a buffer out as an output; a copy keeps later runs from changing it
    try:
        with torch.no_grad():
            result = module(*copy.deepcopy(args), **copy.deepcopy(dict(kwargs)))
    except Exception as error:
        shapes = [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in pytree.tree_leaves((args, kwargs))]
        raise SourceError(
            f"eager fails on inputs {shapes} of method {name!r}, which lie within its dynamic shapes: "
            f"{type(error).__name__}: {error}"
        ) from error
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in pytree.tree_leaves(result)]
