"""export: builds the model, exports one method, and runs eager on its inputs for later comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ....formats.pte.buckets import Bucket
from ...engine import kinds, stage

if TYPE_CHECKING:
    from ....artifacts.local_store import LocalStore
    from ...usercode.model_source import BuiltModel


class MethodParams(stage.Params):
    """How to build a model and export one of its methods."""

    # key fields of the model's source (see `tasks.engine.keys.source`): builder, code digests, versions, arguments
    source: dict[str, Any]
    method: str | None = None  # the method to export, None for the first one that the source defines
    # static sizes of the method, which is exported under the bucket's name
    bucket: Bucket | None = Field(None, exclude_if=lambda bucket: bucket is None)
    seed: int = 0  # seeds torch, numpy and random before the builder runs
    strict: bool = False
    dynamic_shapes: Any = None  # bounds from the zoo file that replace the builder's, per input and dimension, if any
    host: str = ""  # CPU capability of the machine, since eager's figures depend on it


class Export(stage.Stage, name="export"):
    """Runs the model's builder, as do `source_transform` and `baseline`."""

    class Params(MethodParams):
        drawn_inputs: int = 2  # how many random inputs to add to the examples, within the dynamic shapes' bounds

    class Inputs(stage.Roles):
        """None: an eager module is not an artifact, so each worker that needs the model builds it."""

    class Outputs(stage.Roles):
        program: kinds.AtenProgram
        # flat inputs and eager's flat outputs, the examples first and then the random inputs; with the first method
        # also the model's sequences of calls, if it has any
        examples: kinds.Examples
        methods: kinds.MethodNames  # names of all methods of the model, the first one first
        constants: kinds.Constants
        assets: kinds.Assets | None = None  # of a model that has some
        weights: kinds.WeightDigests | None = None  # of a model with several methods
        batch_norms: kinds.NodeNames | None = None  # those that `fold_batch_norms` can fold, if there are any
        metadata: kinds.Metadata | None = None  # what the source says about the model, if it says anything
        sizes: kinds.Sizes | None = None  # those of the inputs, where some may vary
        bucket: kinds.Bucket | None = None  # static sizes that the method was exported for, if it is a bucket
        # what the user's code loaded and read on the way; None for a live model
        observed: kinds.Observed | None = None

    @staticmethod
    def run(inputs: Inputs, params: Params, work: stage.Workspace) -> Outputs:
        """Exports the method; raises SourceError if the builder fails, or the example inputs do not fit the model."""
        from ...usercode.model_source import build_model, observed

        del inputs
        with observed(work, params.source) as observation:
            model = build_model(params.source, params.seed, work)
            outputs = export_built(model, params, work.store)
            return replace(outputs, observed=observation.save(work))


def export_built(model: BuiltModel, params: Export.Params, store: LocalStore) -> Export.Outputs:
    """Exports one method of a built model; raises SourceError if it is missing or the example inputs do not fit."""
    from ...programs.payload import save_assets
    from ...programs.program import load_program, save_program
    from ...programs.values import save_value
    from ...usercode.inputs import check_bounded, draw_count, input_sizes, tied_inputs
    from ...usercode.model_source import check_outputs, written_metadata
    from ..batch_norms import foldable_norms
    from ..buckets import check_stateless, try_padding
    from ..eager import eager_examples
    from ..method import choose_method, digest_weights, emitted_constants, export_sized, with_usual_layouts
    from ..rewriting import rewrite

    methods = list(model.definition.methods)
    several = len(methods) > 1 or params.bucket
    weights = digest_weights(model.definition) if several else {}  # before anything changes them
    model, name, shapes, bucket = choose_method(model, params)
    method, program = model.definition.methods[name], model.program
    if program is None:
        draws = draw_count(params.drawn_inputs, dynamic=True)
        program, notes = export_sized(name, method, shapes, strict=params.strict, draws=draws)
    else:
        notes = list(tied_inputs(program, f"method {name!r}"))
        program = with_usual_layouts(program, method.example_inputs[0], model.keyword_inputs or {})
    check_bounded(program, name)
    notes += model.definition.notes if name == methods[0] else ()
    if bucket:
        check_stateless(program, bucket, model.definition)
        padded = try_padding(method, bucket) if method.padding else None
        if method.padding and not padded:
            notes.append(f"method {name!r}: padding changes what eager computes, so hosts do not pad its inputs")
        bucket = padded or bucket
    constants = emitted_constants(model.definition.constant_methods)
    examples = {**eager_examples(model, name, program, params.drawn_inputs), "notes": notes}
    check_outputs(name, examples["outputs"][0])
    sizes = input_sizes(program)
    if model.program is not None:  # which stays the caller's
        program = load_program(save_program(program, kind="program/aten", store=store), store)
    rewrite(program, alone=len(methods) == 1)
    norms = [foldable.norm.name for foldable in foldable_norms(program)]
    metadata = written_metadata(model.definition)
    return Export.Outputs(
        program=save_program(program, kind="program/aten", store=store),
        examples=save_value(examples, kind="examples", store=store),
        methods=store.put_json("model/methods", methods),
        constants=save_value(constants, kind="model/constants", store=store),
        assets=save_assets(model.definition.assets, store) if model.definition.assets else None,
        weights=store.put_json("model/weights", weights) if weights else None,
        batch_norms=store.put_json("model/batch_norms", norms) if norms else None,
        metadata=store.put_json("model/metadata", metadata) if metadata else None,
        sizes=store.put_json("model/sizes", sizes) if sizes else None,
        bucket=store.put_json("model/bucket", bucket.model_dump_json()) if bucket else None,
    )
