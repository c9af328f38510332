"""export: builds the model, exports one method, and runs eager on its inputs for later comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ...artifacts.digest import canonical_json
from ...artifacts.local_store import LocalStore
from ...artifacts.programs.codec import save_program
from ...artifacts.programs.values import save_value
from ...artifacts.ref import ArtifactRef
from ..source_params import ExportParams
from ..stage import Workspace
from .constants import emitted_constants
from .drawing import draw_inputs
from .input_shapes import check_fits
from .loaded_code import LoadedCode
from .method import Call, choose_method, export_method, run_eager
from .sequences import run_sequences_in_eager
from .source import BuiltModel, build_model


def run(inputs: Mapping[str, ArtifactRef], params: ExportParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes nothing, gives everything that later stages need to know of the model.

    - `program` (program/aten): the method;
    - `examples` (examples): flat inputs and eager's flat outputs, the examples first and then the drawn ones; with the
      first method also the model's sequences of calls, if it has any;
    - `methods` (model/methods): names of all methods, the first one first;
    - `constants` (model/constants): values of the constant methods;
    - `observed` (model/observed): local modules and installed packages that were loaded on the way.

    Raises:
        SourceError: the builder fails, or the example inputs do not fit the model.
    """
    del inputs
    loaded = LoadedCode.from_now()
    outputs = export_built(build_model(params.source, params.seed, work), params, work.store)
    return {**outputs, "observed": loaded.save(work)}


def export_built(model: BuiltModel, params: ExportParams, store: LocalStore) -> dict[str, ArtifactRef]:
    """Exports one method of a model that is there already; gives what `run` gives, but for `observed`.

    Raises:
        SourceError: the model has no such method, or the example inputs do not fit it.
    """
    name, methods = choose_method(model, params), list(model.definition.methods)
    program = model.program
    if program is None:
        program = export_method(name, model.definition.methods[name], params)
    constants = emitted_constants(model.definition.constant_methods)
    return {
        "program": save_program(program, kind="program/aten", store=store),
        "examples": save_value(_examples(model, name, program, params), kind="examples", store=store),
        "methods": store.put_artifact("model/methods", canonical_json(methods)),
        "constants": save_value(constants, kind="model/constants", store=store),
    }


def _examples(model: BuiltModel, name: str, program: ExportedProgram, params: ExportParams) -> dict[str, Any]:
    """Flat inputs and outputs. Each run starts from the state that the model was built with."""
    method = model.definition.methods[name]
    calls: list[Call] = [(example, dict(model.keyword_inputs or {})) for example in method.example_inputs]
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
        outputs.append(run_eager(method.module, call, what))
    stored = {
        "inputs": [pytree.tree_leaves(call) for call in (*calls, *drawn)],
        "outputs": outputs,
        "drawn": len(drawn),
    }
    if model.definition.sequences and name == next(iter(model.definition.methods)):
        stored["sequences"] = run_sequences_in_eager(model.definition)
    return stored
