"""source_transform: one method exported after its module was transformed, by torchao or by the user's functions.

Or exported again without that, for quantizers to observe batches of any size.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...engine import kinds, stage
from ...export.stages.export import MethodParams
from ..torchao_configs import EqualizingParams, TorchaoParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ....artifacts.local_store import LocalStore
    from ....artifacts.ref import ArtifactRef
    from ...usercode.model_source import BuiltModel


_log = logging.getLogger(__name__)


class SourceTransform(stage.Stage, name="source_transform"):
    """Replaces the program of `export`; it is compared with the examples of the untransformed model."""

    distributions = ("torch", "executorch", "torchao", "coremltools")  # the last one makes codebooks

    class Params(MethodParams):
        transforms: tuple[TorchaoParams | stage.CallableParams | EqualizingParams, ...]  # applied one after another
        # whether the first dimension of tensors is dynamic, for quantizers to observe batches of any size
        dynamic_batch: bool = False

        @property
        def callables(self) -> list[stage.CallableParams]:
            """The user's functions."""
            functions = (item.filter_fn if isinstance(item, TorchaoParams) else item for item in self.transforms)
            return [function for function in functions if isinstance(function, stage.CallableParams)]

        @property
        def observes(self) -> bool:
            """Whether layers are observed with samples."""
            rounds = (item.rounding != "nearest" for item in self.transforms if isinstance(item, TorchaoParams))
            scales = (item.equalize == "awq" for item in self.transforms if isinstance(item, EqualizingParams))
            return any((*rounds, *scales))

    class Inputs(stage.Roles):
        """A module is not an artifact, so the model is built as `export` builds it."""

        # of `calibration`, by method, where weights are rounded by what that does to samples
        samples: Mapping[str, kinds.Samples] = dataclasses.field(default_factory=dict)

    class Outputs(stage.Roles):
        program: kinds.AtenProgram
        notes: kinds.Notes | None = None  # what is to be known of the program, if anything
        quantization: kinds.Finding | None = None  # of the weights, where torchao quantizes some
        # what the user's code loaded and read on the way; None for a live model
        observed: kinds.Observed | None = None

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Transforms a copy of the module and exports it.

        Raises:
            SourceError: the builder or a callable fails, or the model is a `.pt2` file.
            TargetError: torchao cannot do what a transform asks for, or it matches no layer of any method.
        """
        from ...usercode.model_source import build_model, observed

        with observed(work, params.source, *(function.source for function in params.callables)) as observation:
            model = build_model(params.source, params.seed, work)
            outputs = transform_built(model, params, work.store, work.unfinished, work.remarked, inputs.samples)
            return dataclasses.replace(outputs, observed=observation.save(work))


def transform_built(
    model: BuiltModel,
    params: SourceTransform.Params,
    store: LocalStore,
    unfinished: Path | None = None,
    remarked: Callable[[str], None] = _log.info,
    samples: Mapping[str, ArtifactRef] = MappingProxyType({}),
) -> SourceTransform.Outputs:
    """Exports a transformed copy of one method of a built model; raises what `SourceTransform.run` does.

    Continues from the layers that an interrupted run has left in the folder `unfinished`, and reports that.
    """
    from ....configs.metadata import QUANTIZED, Metadata
    from ....errors import SourceError
    from ...export.method import choose_method, export_sized
    from ...export.rewriting import rewrite
    from ...programs.program import save_program
    from ...programs.weights import TensorFiles, weights_on_use
    from ...usercode.modules import is_prepared
    from ..finished_layers import FinishedLayers
    from ..module_transforms import check_all_match, layers_used_otherwise, transform_copy
    from ..pt2e import export_for_any_batch
    from ..reached import Asked, quantization_of
    from ..rounding import kept_layers, observed_calls

    calls = observed_calls(model.definition, samples, store) if params.observes else None
    model, name, shapes, _ = choose_method(model, params)
    if model.program is not None:
        again = "`quantize.dynamic_batch_size` exports a model's modules again"
        what = "source_transforms change a model's modules" if params.transforms else again
        raise SourceError(f"{what}, and a .pt2 file has none; give a builder")
    method = model.definition.methods[name]
    if is_prepared(method.module):
        if params.transforms:
            problem = "has a module that PT2E has prepared; source_transforms cannot change those"
            raise SourceError(f"method {name!r} {problem}")
        # it is quantized, and observes nothing more
        program, _ = export_sized(name, method, shapes, strict=params.strict)
        return SourceTransform.Outputs(program=save_program(program, kind="program/aten", store=store))
    quantizing = [transform for transform in params.transforms if isinstance(transform, TorchaoParams)]
    kept = layers_used_otherwise(model, name) if quantizing else frozenset()
    with store.scratch() as folder:  # until the files in it are objects of the store
        with weights_on_use():
            files = FinishedLayers(folder, store=store, records=unfinished) if unfinished else TensorFiles(folder)
            module, matched = transform_copy(method.module, params.transforms, kept, files, calls)
            exact, rounded = kept_layers(method.module, module)
        if files.taken:
            remarked(f"{files.taken} layers quantized before it was interrupted")
        check_all_match(model, name, params.transforms, matched)
        state = " after source_transforms" if params.transforms else ""
        method = dataclasses.replace(method, module=module)
        if params.dynamic_batch:
            program = export_for_any_batch(name, method, shapes, strict=params.strict, state=state)
        else:
            program, _ = export_sized(name, method, shapes, strict=params.strict, state=state)
        rewrite(program, alone=len(model.definition.methods) == 1)
        reached = quantization_of(program, program, Asked(transforms=quantizing, kept=kept)) if quantizing else None
        if reached and (exact or QUANTIZED in Metadata.model_validate(model.definition.metadata or {}).extra):
            reached = dataclasses.replace(reached, exact=tuple(exact), rounded=tuple(rounded))
        for transform in quantizing:
            assert reached  # noqa: S101 - there is a transform
            reached.check(transform.at_least, "source_transforms.at_least")
        notes = [
            f"method {name!r}: the layer {layer!r} stays in floating point, since the model also uses its weights in "
            "another way than layers do, as in `x @ table.weight.t()`"
            for layer in sorted(kept)
        ]
        return SourceTransform.Outputs(
            program=save_program(program, kind="program/aten", store=store),
            notes=store.put_json("report/notes", notes) if notes else None,
            quantization=store.put_json("finding", [reached.to_json()]) if reached else None,
        )
