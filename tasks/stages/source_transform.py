"""source_transform: one method exported after its module was transformed, by torchao or by the user's functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ...artifacts.local_store import LocalStore
from ...artifacts.programs.codec import save_program
from ...artifacts.ref import ArtifactRef
from ...errors import SourceError, TargetError
from ..source_params import SourceTransformParams
from ..stage import Workspace
from .loaded_code import LoadedCode
from .method import choose_method, export_method
from .module_transforms import Transforms, layer_names, transformed
from .prepared import is_prepared
from .source import BuiltModel, build_model

_SHOWN = 12  # names of layers in a message


def run(inputs: Mapping[str, ArtifactRef], params: SourceTransformParams, work: Workspace) -> Mapping[str, ArtifactRef]:
    """Takes nothing, since a module is no artifact: the model is built as `export` builds it.

    Gives

    - `program` (program/aten): the transformed method;
    - `observed` (model/observed): local modules and installed packages that were loaded on the way.

    Raises:
        SourceError: the builder or a callable fails, or the model is a `.pt2` file.
        TargetError: torchao cannot do what a transform asks for, or it matches no layer of any method.
    """
    del inputs
    loaded = LoadedCode.from_now()
    outputs = transform_built(build_model(params.source, params.seed, work), params, work.store)
    return {**outputs, "observed": loaded.save(work)}


def transform_built(model: BuiltModel, params: SourceTransformParams, store: LocalStore) -> dict[str, ArtifactRef]:
    """Exports a transformed copy of one method of a model that is there already; gives `program`.

    Raises:
        SourceError: the model has no such method, or a callable fails, or the model is a `.pt2` file.
        TargetError: torchao cannot do what a transform asks for, or it matches no layer of any method.
    """
    name = choose_method(model, params)
    if model.program is not None:
        raise SourceError("source_transforms change a model's modules, and a .pt2 file has none; give a builder")
    method = model.definition.methods[name]
    if is_prepared(method.module):
        raise SourceError(f"method {name!r} has a module that PT2E has prepared; source_transforms cannot change those")
    module, matched = transformed(method.module, params.transforms)
    _check_all_match(model, name, params.transforms, matched)
    program = export_method(name, dataclasses.replace(method, module=module), params, " after source_transforms")
    return {"program": save_program(program, kind="program/aten", store=store)}


def _check_all_match(model: BuiltModel, name: str, transforms: Transforms, matched: frozenset[int]) -> None:
    """Raises TargetError for a transform that matches no layer of this method, and of no other one either."""
    idle = set(range(len(transforms))) - matched
    for other, method in model.definition.methods.items():
        if idle and other != name:
            idle -= transformed(method.module, transforms)[1]
    if idle:
        position = min(idle)
        layers = layer_names(model.definition.methods[name].module, getattr(transforms[position], "layers", ()))
        names = [repr(each) for found in layers.values() for each in found]
        shown = ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
        raise TargetError(
            f"source_transforms[{position}] matches no layer that earlier ones left, in no method of the model; "
            f"method {name!r} has {shown or 'no layer of these kinds'}"
        )
