"""How lowered programs become a file."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StrictBool, StrictInt, model_validator

from .base import FrozenModel


def _power_of_two(value: int) -> int:
    if value < 1 or value & (value - 1):
        raise ValueError("must be a power of two")
    return value


Alignment = Annotated[StrictInt, AfterValidator(_power_of_two), Field(json_schema_extra={"minimum": 1})]
"""A number of bytes that is a power of two."""


class CompileOptions(FrozenModel):
    """How the file is made and laid out: what of ``executorch.exir.ExecutorchBackendConfig`` is data.

    Fields are called as there, or as those of the passes that it holds.
    """

    extract_delegate_segments: StrictBool = Field(
        default=True,
        description="Put delegate data into segments of its own, which the runtime can free after loading.",
    )
    segment_alignment: Alignment = Field(default=128, description="Alignment of segments, in bytes.")
    constant_tensor_alignment: Alignment | None = Field(
        default=None, description="Least alignment of constant tensors, in bytes; null: ExecuTorch's own."
    )
    delegate_alignment: Alignment | None = Field(
        default=None, description="Least alignment of delegate data, in bytes; null: ExecuTorch's own."
    )
    alloc_graph_input: StrictBool = Field(
        default=True, description="Plan memory for inputs inside the file's arenas (MemoryPlanningPass)."
    )
    alloc_graph_output: StrictBool = Field(
        default=True, description="Plan memory for outputs inside the file's arenas (MemoryPlanningPass)."
    )
    alloc_mutable_buffers: StrictBool = Field(
        default=True, description="Plan memory for buffers that methods change (MemoryPlanningPass)."
    )
    share_mutable_buffers: StrictBool = Field(
        default=False,
        description="Buffers of one name that methods change are one state, which they read and write in turn "
        "(MemoryPlanningPass); the model's first method that has it sets it to what it is at first.",
    )
    memory_planning_algo: Literal["greedy", "naive"] = Field(
        default="greedy",
        description="How memory is planned: greedy reuses what is free again, naive gives each tensor its own.",
    )
    allow_lifetime_and_storage_overlap: StrictBool = Field(
        default=False, description="Let tensors overlap both in time and in memory (MemoryPlanningPass)."
    )
    tensor_alignment: Alignment = Field(
        default=16, description="Alignment of planned tensors, in bytes (MemoryPlanningPass's `alignment`)."
    )
    enable_non_cpu_memory_planning: StrictBool = Field(
        default=True, description="Plan memory of other devices apart from the CPU's."
    )
    skip_h2d_for_method_inputs: StrictBool = Field(
        default=False, description="Inputs are on the delegate's device already (PropagateDeviceConfig)."
    )
    skip_d2h_for_method_outputs: StrictBool = Field(
        default=False, description="Outputs stay on the delegate's device (PropagateDeviceConfig)."
    )
    sym_shape_eval: Literal["constraint_based", "hint_based"] = Field(
        default="constraint_based",
        description="How much memory a dynamic size gets: for the upper bound of its constraints, or of the example's.",
    )
    remove_view_copy: StrictBool = Field(default=True, description="Views share memory with what they are views of.")
    do_quant_fusion_and_const_prop: StrictBool = Field(
        default=False, description="Fuse quantized operators and compute what is constant ahead of time."
    )
    run_reinplace_pass: StrictBool = Field(default=False, description="Let operators write over inputs not used again.")
    reinplace_extra_ops: tuple[str, ...] = Field(
        default=(), description="Further operators that may, such as aten.relu.default; implies `run_reinplace_pass`."
    )
    ignore_to_out_var_failure: StrictBool = Field(
        default=False,
        description="Keep operators without an out variant (ToOutVarPass); few runtimes can run them.",
    )
    emit_mutable_buffer_names: StrictBool = Field(
        default=False, description="Write the names of buffers that methods change into the file."
    )
    emit_stacktrace: StrictBool = Field(
        default=False, description="Keep Python stack traces in the file; a recipe's `debug` implies it."
    )
    generate_etrecord: StrictBool = Field(
        default=False,
        description="Beside the file, make an ETRecord for ExecuTorch's Inspector, and the maps of debug handles and "
        "delegates; a recipe's `debug` implies it.",
    )

    @model_validator(mode="after")
    def _shared_buffers_are_planned(self) -> Self:
        if self.share_mutable_buffers and not self.alloc_mutable_buffers:
            raise ValueError("`share_mutable_buffers` needs `alloc_mutable_buffers`")
        return self
