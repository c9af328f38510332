"""Recipes: how to lower a model. A recipe never holds inputs, so one fits many models."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    JsonValue,
    StrictBool,
    ValidationInfo,
    field_validator,
    model_validator,
)

from .accuracy import Accuracy
from .base import FrozenModel
from .compile_options import CompileOptions
from .edge import EdgeOptions
from .fields import FieldPath
from .methods import MethodOptions
from .names import TARGET_SEPARATOR
from .quantize import Quantize
from .shapes import MethodName
from .source_transforms import SourceTransform
from .verify_bounds import Verification


class Specialization(FrozenModel):
    """One backend that the model is lowered for."""

    target: str = Field(
        min_length=1,
        description="Name of the target, such as portable or xnnpack; coreml+xnnpack: what the first leaves, "
        "the second may take, with options under the names of both.",
    )
    options: dict[str, JsonValue] = Field(
        default={}, description="The target's own options; the target checks them before any work starts."
    )
    name: str = Field(
        default="",
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$|^$",
        description="What the payload is called in a fat file; the target's name if left out. Unique in the recipe.",
    )
    required: StrictBool = Field(
        default=True, description="false: if this one fails, a file with several specializations is made without it."
    )
    methods: dict[MethodName, MethodOptions] = Field(
        default={}, description="By method name, what differs for single methods of a model that has several."
    )

    @property
    def payload(self) -> str:
        """Name of the payload."""
        return self.name or self.target.replace(TARGET_SEPARATOR, "-")


class Output(FrozenModel):
    """What kind of file is made."""

    form: Literal["plain", "fat"] = Field(
        default="plain",
        description="plain: the specialization's own .pte, as it is. fat: one .pte with all specializations, of which "
        "the device runs the first that it can; what they have in common is in it once.",
    )
    external_data: StrictBool = Field(
        default=False,
        description="Weights go to a .ptd file beside the .pte: the constants of ExecuTorch's own kernels and what "
        "backends look up by name. The two files belong together.",
    )

    @property
    def payload_is_split(self) -> bool:
        """Whether the only payload has its weights outside; those of fat files are whole, and split when packed."""
        return self.external_data and self.form == "plain"


class Recipe(FrozenModel):
    """How to lower a model: for which backends, with what options, into what, and how exactly it must compute."""

    description: str = Field(default="", description="One line for people.")
    output: Output = Field(default=Output(), description="What kind of file is made.")
    specializations: tuple[Specialization, ...] = Field(
        description="The backends that the model is lowered for; at least one.", json_schema_extra={"minItems": 1}
    )
    source_transforms: tuple[SourceTransform, ...] = Field(
        default=(), description="What is done to the model's modules before they are exported, one after another."
    )
    quantize: Quantize | None = Field(
        default=None, description="How exported programs are quantized before they are lowered; null: not at all."
    )
    edge: EdgeOptions = Field(default=EdgeOptions(), description="How ATen programs become Edge programs.")
    compile: CompileOptions = Field(default=CompileOptions(), description="How the file is laid out.")
    debug: StrictBool = Field(
        default=False,
        description="For debugging: stack traces in the file, and beside it an ETRecord for ExecuTorch's Inspector and "
        "maps from debug handles to the model's source. Implies `compile.emit_stacktrace` and "
        "`compile.generate_etrecord`.",
    )
    verify: Verification = Field(default=Verification(), description="How far outputs may be from eager's.")
    not_for: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        default={},
        description="Globs of names of models that the recipe does not apply to, each with the reason. Such pairs are "
        "left out, and the run says why.",
    )

    accuracy: Accuracy | None = Field(
        default=None, description="How good the file must be at its task; null: that is not asked."
    )

    @property
    def compiling(self) -> CompileOptions:
        """`compile` with what `debug` implies."""
        implied = {"emit_stacktrace": True, "generate_etrecord": True} if self.debug else {}
        return self.compile.model_copy(update=implied)

    def quantizes(self, method: str) -> bool:
        """Whether what the recipe quantizes with is for that method: those of `quantize.methods`, or else all."""
        named = self.quantize and self.quantize.methods
        return not named or method in named

    def reason_against(self, model: str) -> str | None:
        """Why the recipe does not apply to a model; None where it does."""
        return next((reason for glob, reason in self.not_for.items() if fnmatchcase(model, glob)), None)

    @property
    def edges(self) -> dict[FieldPath, EdgeOptions]:
        """Everything that it says of Edge programs, by the field where it stands: its own, and of single methods."""
        found: dict[FieldPath, EdgeOptions] = {("edge",): self.edge}
        for position, specialization in enumerate(self.specializations):
            for method, own in specialization.methods.items():
                if own.edge:
                    found["specializations", position, "methods", method, "edge"] = own.edge
        return found

    @property
    def operators(self) -> tuple[tuple[str, str], ...]:
        """Every operator that it names, each with the field that does."""
        edges = self.edges.values()
        named = [(name, "edge.preserve_operators") for edge in edges for name in edge.preserve_operators]
        named += [
            (name, "edge.core_aten_ops_exception_list") for edge in edges for name in edge.core_aten_ops_exception_list
        ]
        return (*named, *((name, "compile.reinplace_extra_ops") for name in self.compile.reinplace_extra_ops))

    @field_validator("specializations")
    @classmethod
    def _fit_the_form(cls, value: tuple[Specialization, ...], info: ValidationInfo) -> tuple[Specialization, ...]:
        if not value:
            raise ValueError("is empty; a recipe needs at least one specialization")
        output = info.data.get("output")
        if isinstance(output, Output) and output.form == "plain" and len(value) > 1:
            targets = ", ".join(specialization.target for specialization in value)
            raise ValueError(
                f"`output.form: plain` takes exactly one specialization, and here are {len(value)} ({targets}); "
                "write one recipe for each, or `output: {form: fat}` for one file with all of them"
            )
        fat = isinstance(output, Output) and output.form == "fat"
        names = [specialization.payload for specialization in value]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{repeated[0]!r} is there more than once; give each a `name` of its own")
        if fat and not value[-1].required:
            raise ValueError("the last one is what every device falls back to; it cannot be `required: false`")
        return value

    @model_validator(mode="after")
    def _state_is_shared_in_plain_files(self) -> Self:
        if self.compile.share_mutable_buffers and self.output.form == "fat":
            raise ValueError(
                "`compile.share_mutable_buffers` needs `output: {form: plain}`: each method of a fat file is a "
                "delegate of its own, with memory of its own"
            )
        return self
