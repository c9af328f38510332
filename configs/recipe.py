"""Recipes: how to lower a model. A recipe never holds inputs, so one recipe fits many models."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    StrictBool,
    StrictInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from .base import TARGET_SEPARATOR, FrozenModel, MethodName, ObjectReference
from .nodes import FieldPath
from .quantize import CallableTransform, LayerQuantization, Quantize, SourceTransform
from .sources import LayerFields, NamedFunction
from .verification import Accuracy, Number, Verification


class _PassMaker(NamedFunction):
    callable: ObjectReference = Field(
        description="package.module:name of a pass class, or of a function that returns a pass or a list of them."
    )
    kwargs: dict[str, JsonValue] = Field({}, description="Keyword arguments of the callable.")


class EdgePass(_PassMaker):
    """A pass over Edge programs, named by where it is imported from."""

    takes_program: StrictBool = Field(
        False, description="Pass it the method's name and ATen program first, as in edge_transform_passes."
    )


class AtenPass(NamedFunction):
    """A function over ATen programs, named by where it is imported from."""

    callable: ObjectReference = Field(
        description="package.module:name of a function of a method's name and ATen program that returns a program."
    )


class EdgeManagerPass(NamedFunction):
    """A function over the Edge programs of all methods, named by where it is imported from."""

    callable: ObjectReference = Field(
        description="package.module:name of a function that takes an executorch.exir.EdgeProgramManager with all "
        "methods and returns passes: a list, a mapping of methods to lists, or a pass manager."
    )
    takes_program: StrictBool = Field(False, description="Call it for each method, with its name and Edge program.")
    before: Literal["partition", "compile"] = Field(
        "compile",
        description="partition: it runs on whole programs, after `edge`. compile: on programs with delegates, as "
        "executorch.export runs the functions of edge_manager_transform_passes.",
    )


class EmissionPass(_PassMaker):
    """A pass over programs whose delegates are linked in, named by where it is imported from."""

    takes_module: StrictBool = Field(
        False, description="The callable is the pass itself: torch.fx.GraphModule to PassResult or None."
    )


class EdgeOptions(FrozenModel):
    """How ATen programs become Edge programs (``executorch.exir.EdgeCompileConfig``)."""

    preserve_operators: tuple[str, ...] = Field((), description="Operators to keep whole, such as aten.linear.default.")
    check_ir_validity: StrictBool = Field(True, description="Check that the program is in the Edge dialect.")
    skip_dim_order: StrictBool = Field(False, description="Leave out the operators that carry dim order.")
    core_aten_ops_exception_list: tuple[str, ...] = Field(
        (), description="Operators outside of core ATen that are allowed, such as aten.linalg_vector_norm.default."
    )
    preserve_for_target: StrictBool = Field(
        True, description="false: decompose all operators, as to_edge does, even those that the target takes whole."
    )
    passes: tuple[EdgePass, ...] = Field(
        (),
        description="Passes to run in order over each method's Edge program before it is partitioned, after the "
        "target's own. They run again when their code changes.",
    )


def _power_of_two(value: int) -> int:
    if value < 1 or value & (value - 1):
        raise ValueError("must be a power of two")
    return value


Alignment = Annotated[StrictInt, AfterValidator(_power_of_two), Field(json_schema_extra={"minimum": 1})]
"""A number of bytes that is a power of two."""

MemoryPlanningAlgorithm = Literal["greedy", "naive"]
SymShapeEval = Literal["constraint_based", "hint_based"]


class MethodOptions(FrozenModel):
    """How one method is lowered, where that differs from the rest of its payload."""

    delegate: StrictBool = Field(True, description="false: it is not partitioned; the portable kernels run all of it.")
    target: str | None = Field(
        None, min_length=1, description="Target that partitions the method; null: that of the specialization."
    )
    options: dict[str, JsonValue] | None = Field(
        None, description="Options of that target for the method; null: those of the specialization."
    )
    edge: EdgeOptions | None = Field(None, description="Edge options of the method; null: those of the recipe.")
    alloc_graph_input: StrictBool | None = Field(None, description="Plan memory for its inputs; null: as `compile`.")
    alloc_graph_output: StrictBool | None = Field(None, description="Plan memory for its outputs; null: as `compile`.")
    alloc_mutable_buffers: StrictBool | None = Field(None, description="Plan its mutable buffers; null: as `compile`.")
    memory_planning_algo: MemoryPlanningAlgorithm | None = Field(None, description="Algorithm; null: as `compile`.")
    allow_lifetime_and_storage_overlap: StrictBool | None = Field(
        None, description="Let its tensors overlap both in time and in memory; null: as `compile`."
    )
    tensor_alignment: Alignment | None = Field(
        None, description="Alignment of planned tensors, in bytes; null: as `compile`."
    )
    sym_shape_eval: SymShapeEval | None = Field(None, description="Memory of its dynamic sizes; null: as `compile`.")
    skip_h2d_for_method_inputs: StrictBool | None = Field(
        None, description="Its inputs are on the delegate's device already; null: as `compile`."
    )
    skip_d2h_for_method_outputs: StrictBool | None = Field(
        None, description="Its outputs stay on the delegate's device; null: as `compile`."
    )

    @property
    def layout(self) -> dict[str, Any]:
        """Its own options in place of those of `compile`, which have the same names."""
        own = MethodOptions.model_fields.keys() & CompileOptions.model_fields.keys()
        return {name: value for name in sorted(own) if (value := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _target_is_used(self) -> Self:
        if not self.delegate and (self.target is not None or self.options is not None):
            raise ValueError("`delegate: false` excludes `target` and `options`")
        return self


class CompileOptions(FrozenModel):
    """Layout of the file: the fields of ``executorch.exir.ExecutorchBackendConfig`` and its passes that are data."""

    extract_delegate_segments: StrictBool = Field(
        True, description="Put delegate data into separate segments, which the runtime can free after loading."
    )
    segment_alignment: Alignment = Field(128, description="Alignment of segments, in bytes.")
    constant_tensor_alignment: Alignment | None = Field(
        None, description="Minimum alignment of constant tensors, in bytes; null: ExecuTorch's own."
    )
    delegate_alignment: Alignment | None = Field(
        None, description="Minimum alignment of delegate data, in bytes; null: ExecuTorch's own."
    )
    alloc_graph_input: StrictBool = Field(True, description="Plan memory for inputs (MemoryPlanningPass).")
    alloc_graph_output: StrictBool = Field(True, description="Plan memory for outputs (MemoryPlanningPass).")
    alloc_mutable_buffers: StrictBool = Field(True, description="Plan buffers that methods write (MemoryPlanningPass).")
    share_mutable_buffers: StrictBool = Field(
        False,
        description="Methods share the buffers of one name that they change (MemoryPlanningPass); the initial value is "
        "that of the model's first method that has the buffer.",
    )
    memory_planning_algo: MemoryPlanningAlgorithm = Field(
        "greedy", description="greedy: memory that is free again is reused. naive: each tensor has memory of its own."
    )
    allow_lifetime_and_storage_overlap: StrictBool = Field(
        False, description="Let tensors overlap both in time and in memory (MemoryPlanningPass)."
    )
    tensor_alignment: Alignment = Field(
        16, description="Alignment of planned tensors, in bytes (`alignment` of MemoryPlanningPass)."
    )
    enable_non_cpu_memory_planning: StrictBool = Field(True, description="Plan each device's memory separately.")
    skip_h2d_for_method_inputs: StrictBool = Field(
        False, description="Inputs are on the delegate's device already (PropagateDeviceConfig)."
    )
    skip_d2h_for_method_outputs: StrictBool = Field(
        False, description="Outputs stay on the delegate's device (PropagateDeviceConfig)."
    )
    sym_shape_eval: SymShapeEval = Field(
        "constraint_based", description="Memory of dynamic sizes: by the upper bound of constraints, or the example's."
    )
    remove_view_copy: StrictBool = Field(True, description="Views share memory with the tensors they view.")
    do_quant_fusion_and_const_prop: StrictBool = Field(False, description="Fuse quantized operators, fold constants.")
    run_reinplace_pass: StrictBool = Field(False, description="Let operators overwrite inputs that are not used again.")
    reinplace_extra_ops: tuple[str, ...] = Field(
        (), description="More operators that may, such as aten.relu.default; implies `run_reinplace_pass`."
    )
    ignore_to_out_var_failure: StrictBool = Field(
        False, description="Keep operators without an out variant (ToOutVarPass); few runtimes can run them."
    )
    emit_mutable_buffer_names: StrictBool = Field(False, description="Store the names of buffers that methods change.")
    emit_stacktrace: StrictBool = Field(False, description="Keep Python stack traces in the file; implied by `debug`.")
    generate_etrecord: StrictBool = Field(
        False, description="Also write an ETRecord and the maps of debug handles and delegates; implied by `debug`."
    )

    @model_validator(mode="after")
    def _shared_buffers_are_planned(self) -> Self:
        if self.share_mutable_buffers and not self.alloc_mutable_buffers:
            raise ValueError("`share_mutable_buffers` needs `alloc_mutable_buffers`")
        return self


class Specialization(FrozenModel):
    """One backend that the model is lowered for."""

    target: str = Field(
        min_length=1,
        description="Name of the target, such as portable or xnnpack; coreml+xnnpack: the second takes operators that "
        "the first leaves, with options under the names of both.",
    )
    options: dict[str, JsonValue] = Field({}, description="The target's own options, checked before any work starts.")
    name: str = Field(
        "",
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$|^$",
        description="Name of the payload in a fat file, unique in the recipe; left out: the target's name.",
    )
    required: StrictBool = Field(True, description="false: if it fails, a fat file is made without it.")
    methods: dict[MethodName, MethodOptions] = Field(
        {}, description="Differences for single methods, by name, of a model that has several."
    )

    @property
    def payload(self) -> str:
        return self.name or self.target.replace(TARGET_SEPARATOR, "-")


class SelfCheck(FrozenModel):
    """How each payload of a fat file checks itself before a device runs it."""

    cases: StrictInt = Field(
        2,
        ge=1,
        le=16,
        description="Most calls of each method that the file carries, with the outputs of eager: the examples, and "
        "then random inputs, unless the recipe quantizes. One does not find backends that ignore their inputs.",
    )
    repeats: StrictInt = Field(
        3, ge=1, le=100, description="Runs of each call; outputs must be equal bit for bit. 1: they may vary."
    )
    tolerance: Number | None = Field(
        None,
        gt=0,
        le=1,
        description="Largest ratio of noise to signal of an output: 0.0001 is 80 dB. No element may be off by more "
        "than ten times that, as a share of the largest one. null: that of `verify.min_sqnr_db`, relaxed for 16-bit "
        "outputs as there; 0.01 if that is null.",
    )


class Output(FrozenModel):
    """What kind of file is made."""

    form: Literal["plain", "fat", "header"] = Field(
        "plain",
        description="plain: the specialization's own .pte, as it is. fat: one .pte with all specializations, of which "
        "the device runs the first that it can; common weights are stored once. header: plain, and next to it the same "
        "bytes as an array in a C header, for firmware.",
    )
    external_data: StrictBool | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        False,
        description="Write weights to a .ptd file next to the .pte: the constants of ExecuTorch's own kernels and the "
        "weights that backends look up by name. The two files belong together. A list of patterns, such as *.lora_*: "
        "only weights with such names, except those inside of delegates.",
    )
    share_transposed: StrictBool = Field(
        True,
        description="fat: store a weight once if backends differ only in its layout, as for convolutions, or in taking "
        "it as 32-bit or 16-bit numbers. false: for apps with a delegate older than this, which would pass over the "
        "payloads concerned.",
    )

    self_check: SelfCheck | None = Field(
        None,
        description="fat: calls with known results in the file. When a device loads a payload, it makes them, and "
        "passes over the payload if they return something else or vary. null: none.",
    )

    @model_validator(mode="after")
    def _fit_the_form(self) -> Self:
        if self.self_check and self.form != "fat":
            raise ValueError("`self_check` needs `form: fat`: nothing checks a plain file when it is loaded")
        if not isinstance(self.external_data, bool) and self.form == "fat":
            raise ValueError("`external_data` takes patterns with `form: plain` only: write true, or false")
        if self.external_data and self.form == "header":
            raise ValueError("`external_data` needs `form: plain` or `fat`: a header has all of a file")
        return self

    @property
    def split_weights(self) -> bool | tuple[str, ...]:
        """Which weights of the only payload are external; payloads of fat files are whole, and split when packed."""
        return self.form == "plain" and self.external_data


class Recipe(FrozenModel):
    """How to lower a model: for which backends, with which options, to what kind of file, and how it is verified."""

    description: str = Field("", description="One line for people.")
    output: Output = Field(Output(), description="What kind of file is made.")
    specializations: tuple[Specialization, ...] = Field(
        description="The backends that the model is lowered for; at least one.", json_schema_extra={"minItems": 1}
    )
    source_transforms: tuple[SourceTransform, ...] = Field(
        (), description="Transforms of the model's modules before they are exported, in order."
    )
    quantize_layers: LayerQuantization | None = Field(
        None,
        description="Short for `source_transforms` that quantize linear layers and embeddings; where there are any of "
        "those, they come in its place. A model's source may have other values.",
    )
    fold_batch_norms: StrictBool = Field(
        True,
        description="Fold batch norms into the convolutions and linear layers before them, once for all "
        "specializations, so that they share the weights. false: backends fold for themselves.",
    )
    quantize: Quantize | None = Field(None, description="How exported programs are quantized; null: not at all.")
    aten_passes: tuple[AtenPass, ...] = Field(
        (), description="Functions to run in order over methods' quantized ATen programs; run again when they change."
    )
    edge: EdgeOptions = Field(EdgeOptions(), description="How ATen programs become Edge programs.")
    edge_manager_passes: tuple[EdgeManagerPass, ...] = Field(
        (), description="Functions to run in order over the Edge programs of all methods; run again when they change."
    )
    emission_passes: tuple[EmissionPass, ...] = Field(
        (),
        description="Passes over the methods' programs, in order, just before they are emitted: `passes` of an "
        "ExecutorchBackendConfig. They run again when their code changes.",
    )
    compile: CompileOptions = Field(CompileOptions(), description="How the file is laid out.")
    debug: StrictBool = Field(
        False,
        description="For debugging: stack traces in the file, and next to it an ETRecord for ExecuTorch's Inspector "
        "and maps from debug handles to the model's source. Implies `compile.emit_stacktrace` and "
        "`compile.generate_etrecord`.",
    )
    verify: Verification = Field(Verification(), description="How far outputs may be from eager's.")
    not_for: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        {}, description="Globs of models to skip, each with the reason, which the run reports."
    )
    accuracy: Accuracy | None = Field(None, description="How good the file must be at its task; null: not scored.")
    toolchain: str | None = Field(
        None, description="The toolchain of the zoo that lowers with it; null: the environment that runs the zoo."
    )

    @property
    def compile_options(self) -> CompileOptions:
        implied = {"emit_stacktrace": True, "generate_etrecord": True} if self.debug else {}
        return self.compile.model_copy(update=implied)

    def quantizes(self, method: str) -> bool:
        """Whether `quantize` applies to that method: one of `quantize.methods`, or any if that is left out."""
        methods = self.quantize and self.quantize.methods
        return not methods or method in methods

    @property
    def transforms(self) -> tuple[SourceTransform, ...]:
        """The transforms, also where they are written as `quantize_layers`."""
        return self.source_transforms or (self.quantize_layers.transforms if self.quantize_layers else ())

    @property
    def rounds_by_samples(self) -> bool:
        """Whether weights are rounded or scaled by what that does to calibration samples."""
        return any(
            getattr(transform, "rounding", "") == "gptq" or getattr(transform, "equalize", "") == "awq"
            for transform in self.transforms
        )

    def with_layers(self, fields: LayerFields) -> Recipe:
        """The recipe with fields that replace those of its `quantize_layers`; raises ValueError if they do not fit."""
        own = self.quantize_layers
        if own is None or self.source_transforms:
            return self
        merged = own.model_copy(update=fields.model_dump(exclude_unset=True)).check_groups()
        return self.model_copy(update={"quantize_layers": merged})

    @property
    def bounds_of_search(self) -> dict[str, float]:
        """How far a file's score may be below eager's, by the gate's fields, where the search for a file says so."""
        search = self.quantize.search if self.quantize else None
        bounds = {"max_drop": search.drop, "keep": search.keep} if search else {}
        return {name: bound for name, bound in bounds.items() if bound is not None}

    def reason_against(self, model: str) -> str | None:
        return next((reason for glob, reason in self.not_for.items() if fnmatchcase(model, glob)), None)

    @property
    def edges(self) -> dict[FieldPath, EdgeOptions]:
        """All Edge options, the recipe's and those of single methods, by the field that holds them."""
        edges: dict[FieldPath, EdgeOptions] = {("edge",): self.edge}
        for position, specialization in enumerate(self.specializations):
            for method, options in specialization.methods.items():
                if options.edge:
                    edges["specializations", position, "methods", method, "edge"] = options.edge
        return edges

    @property
    def operators(self) -> tuple[tuple[str, str], ...]:
        lists = [
            (field, getattr(edge, field.removeprefix("edge.")))
            for field in ("edge.preserve_operators", "edge.core_aten_ops_exception_list")
            for edge in self.edges.values()
        ]
        lists.append(("compile.reinplace_extra_ops", self.compile.reinplace_extra_ops))
        return tuple((name, field) for field, names in lists for name in names)

    @field_validator("specializations")
    @classmethod
    def _fit_the_form(cls, value: tuple[Specialization, ...], info: ValidationInfo) -> tuple[Specialization, ...]:
        if not value:
            raise ValueError("is empty; a recipe needs at least one specialization")
        output = info.data.get("output")
        form = output.form if isinstance(output, Output) else None
        if form in ("plain", "header") and len(value) > 1:
            targets = ", ".join(specialization.target for specialization in value)
            raise ValueError(
                f"`output.form: {form}` takes exactly one specialization, and there are {len(value)} ({targets}); "
                "write one recipe for each, or `output: {form: fat}` for one file with all of them"
            )
        names = [specialization.payload for specialization in value]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{repeated[0]!r} is there more than once; give each a `name` of its own")
        if form == "fat" and not value[-1].required:
            raise ValueError("every device falls back to the last specialization; it cannot be `required: false`")
        return value

    @model_validator(mode="after")
    def _rounds_the_model_itself(self) -> Self:
        if self.rounds_by_samples and any(isinstance(each, CallableTransform) for each in self.transforms):
            raise ValueError(
                "`rounding: gptq` and `equalize: awq` observe the model itself, and functions among "
                "`source_transforms` change it"
            )
        return self

    @model_validator(mode="after")
    def _state_is_shared_in_plain_files(self) -> Self:
        if self.compile.share_mutable_buffers and self.output.form == "fat":
            raise ValueError(
                "`compile.share_mutable_buffers` needs `output: {form: plain}`: each method of a fat file is a "
                "delegate of its own, with memory of its own"
            )
        for specialization in self.specializations if self.compile.share_mutable_buffers else ():
            for method, own in specialization.methods.items():
                if own.alloc_mutable_buffers is False:
                    raise ValueError(f"`compile.share_mutable_buffers` needs `alloc_mutable_buffers` of {method!r}")
        return self
