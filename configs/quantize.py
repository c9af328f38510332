"""How a recipe quantizes: PT2E quantization, and transforms of modules before they are exported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, StrictBool, StrictInt, Tag, model_validator

from .base import CountOrSeconds, FrozenModel, MethodName, ObjectReference, by_key
from .sources import EQUALIZE, ROUNDING, Equalization, LayerFields, LinearScheme, NamedFunction, Rounding

_QUANTIZER = "Name of the target whose quantizer annotates the program."
_OPTIONS = "The quantizer's own options, such as per_channel or dynamic for xnnpack; checked before any work starts."


Patterns = Annotated[
    tuple[str, ...], BeforeValidator(lambda written: (written,) if isinstance(written, str) else written)
]
"""Shell patterns (`fnmatch`) of fully qualified module names; text is short for a list of one."""


class QuantizerChoice(FrozenModel):
    """One of several quantizers."""

    quantizer: str = Field(min_length=1, description=_QUANTIZER)
    options: dict[str, JsonValue] = Field({}, description=_OPTIONS)
    filter_fn: ObjectReference | None = Field(
        None,
        description="package.module:name of a function that takes a node of the graph and says whether to quantize it, "
        "for quantizers with `set_filter_function`: those of xnnpack and vulkan.",
    )


class GraphPass(NamedFunction):
    """A function over the module that PT2E quantizes, named by where it is imported from."""

    callable: ObjectReference = Field(
        description="package.module:name of a function that takes a torch.fx.GraphModule and returns one."
    )


PASS_FIELDS = ("pre_prepare_passes", "post_prepare_passes", "pre_convert_passes", "post_convert_passes")
"""Fields of `Quantize` with functions, in the order in which they run."""

_RUN_AGAIN = "They run again when their code changes."


class QuantizationVariant(FrozenModel):
    """What a search tries besides the recipe's own quantization; fields that are left out are the recipe's."""

    options: dict[str, JsonValue] = Field({}, description=f"Over the recipe's. {_OPTIONS}")
    smooth: StrictBool | None = Field(None, description="Whether scales are moved; null: as the recipe says.")
    correct_biases: StrictBool | None = Field(None, description="Whether biases change; null: as the recipe says.")

    def joined(self, other: QuantizationVariant) -> QuantizationVariant:
        """Both at once; where they contradict each other, the other one counts."""
        return QuantizationVariant(**{**self.written, **other.written, "options": self.options | other.options})

    @property
    def written(self) -> dict[str, Any]:
        """The fields that differ, as JSON."""
        return self.model_dump(mode="json", exclude_defaults=True)


class QuantizationSearch(FrozenModel):
    """Finds a variant, and the fewest layers in floating point, with which a file passes its gate."""

    drop: float | None = Field(None, ge=0, description="Largest drop of the score below eager's; null: the gate's.")
    keep: float | None = Field(None, gt=0, le=1, description="Least share of eager's score, in place of `drop`.")
    variants: tuple[QuantizationVariant, ...] = Field(
        (),
        description="What to try, such as [{smooth: true}, {options: {ranges: percentile}}]; the recipe comes first.",
    )
    goal: Literal["size", "latency"] = Field(
        "size",
        description="What counts of files that pass: their bytes, or the time of their calls on this machine.",
    )
    budget: CountOrSeconds = Field(
        20, description="How many files may be made and scored; or how long their stages may take, such as 30m."
    )
    evaluator_kwargs: dict[str, JsonValue] = Field(
        {},
        description="Arguments of the evaluator for files that are tried, over the gate's, such as {split: tuning}. "
        "The file that is found is scored with the gate's own, on data by which nothing was chosen.",
    )

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if self.keep is not None and self.drop is not None:
            raise ValueError("has `keep` as well as `drop`; both say how far the score may be below eager's")
        return self


class Quantize(FrozenModel):
    """Post-training quantization of exported programs (PT2E), calibrated on the model's dataset or example inputs."""

    quantizer: str = Field("xnnpack", min_length=1, description=_QUANTIZER)
    options: dict[str, JsonValue] = Field({}, description=_OPTIONS)
    quantizers: tuple[QuantizerChoice, ...] = Field(
        (), description="Quantizers by preference, in place of `quantizer`: each annotates what those before it left."
    )
    methods: tuple[MethodName, ...] | None = Field(
        None, min_length=1, description="Methods to quantize, each of which must have something to quantize; null: all."
    )
    dynamic_batch_size: StrictBool = Field(
        False,
        description="Calibration samples may differ from the example in the first dimension of tensors: the model is "
        "exported for any batch to observe them. The file takes what it takes without this.",
    )
    pre_prepare_passes: tuple[GraphPass, ...] = Field(
        (), description=f"Functions to run in order over the exported module, before observers enter it. {_RUN_AGAIN}"
    )
    post_prepare_passes: tuple[GraphPass, ...] = Field(
        (), description=f"Functions to run over the module with observers, before they observe. {_RUN_AGAIN}"
    )
    pre_convert_passes: tuple[GraphPass, ...] = Field(
        (), description=f"Functions to run over the module when its observers are done. {_RUN_AGAIN}"
    )
    post_convert_passes: tuple[GraphPass, ...] = Field(
        (), description=f"Functions to run over the quantized module, before it is exported. {_RUN_AGAIN}"
    )
    smooth: StrictBool = Field(
        False,
        description="Move scales between the inputs and the weights of linear layers and convolutions, where that "
        "makes their outputs on samples more exact (SmoothQuant).",
    )
    correct_biases: StrictBool = Field(
        False,
        description="Add to the biases of linear layers and convolutions what their rounded weights lose on average "
        "over samples (bias correction).",
    )
    exclude: Patterns = Field(
        (), description="Patterns of modules to leave in floating point, with all they contain, such as encoder.*"
    )
    at_least: float | None = Field(
        None, gt=0, le=1, description="Least share of a method's weight elements that become integers; null: any."
    )
    search: QuantizationSearch | None = Field(
        None, description="Leave out more layers, worst first, until the file passes its accuracy gate; null: none."
    )

    @model_validator(mode="after")
    def _one_or_several(self) -> Self:
        if self.quantizers and self.model_fields_set & {"quantizer", "options"}:
            raise ValueError("has `quantizers` as well as `quantizer` or `options`; write every quantizer in the list")
        if self.quantizers and self.search and any(variant.options for variant in self.search.variants):
            raise ValueError("has `quantizers`, and `options` of variants of its search are those of one `quantizer`")
        return self

    def varied(self, variant: QuantizationVariant) -> Quantize:
        return self.model_copy(update=variant.written | {"options": self.options | variant.options})

    @property
    def passes(self) -> dict[str, tuple[GraphPass, ...]]:
        return {field: getattr(self, field) for field in PASS_FIELDS}

    @property
    def chosen(self) -> tuple[QuantizerChoice, ...]:
        return self.quantizers or (QuantizerChoice(quantizer=self.quantizer, options=self.options),)


def _not_empty(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("is empty; leave it out to take every layer")
    return value


class TorchaoTransform(FrozenModel):
    """Quantizes the weights of layers in place: ``torchao.quantization.quantize_`` with one of its configs."""

    torchao: str = Field(
        min_length=1, description="A config of torchao.quantization: class name or snake case (int8_weight_only)."
    )
    params: dict[str, JsonValue] = Field(
        {},
        description="Fields of the config. Data types by name (int4), enums by member, granularities as mappings such "
        "as {per_group: 32} and {per_axis: 0}, or by name (per_row).",
    )
    otherwise: dict[str, JsonValue] | None = Field(
        None,
        description="Fields of the config for layers whose input features are no multiple of the size of groups; null: "
        "an error that names the layer.",
    )
    filter: Annotated[Patterns, AfterValidator(_not_empty)] = Field(
        ("*",), description="Layers to quantize: patterns of their names in the method's module, such as encoder.*."
    )
    exclude: Patterns = Field((), description="Layers to leave alone: patterns, as for `filter`.")
    layers: tuple[Literal["linear", "embedding"], ...] = Field(
        ("linear",), min_length=1, description="The kinds of layers to quantize."
    )
    at_least: float | None = Field(
        None, gt=0, le=1, description="Least share of weight elements to be integers after all transforms; null: any."
    )
    rounding: Rounding = Field("nearest", description=ROUNDING)
    filter_fn: ObjectReference | None = Field(
        None,
        description="package.module:name of a function that takes a module and its name and says whether to quantize "
        "it, as `quantize_` calls it for every module, in place of `filter`, `exclude` and `layers`.",
    )

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> Self:
        if self.filter_fn and (others := sorted(self.model_fields_set & {"filter", "exclude", "layers"})):
            raise ValueError(f"has `filter_fn` as well as `{others[0]}`; let the function choose, or leave it out")
        return self


class EqualizingTransform(FrozenModel):
    """Changes the weights of a decoder so that they, or activations, lose less when they are rounded."""

    equalize: Equalization = Field(description=EQUALIZE)
    bits: Literal[2, 3, 4, 8] = Field(4, description="Of the integers that weights become, for awq.")
    group_size: StrictInt = Field(32, ge=1, description="How many weights share a scale, for awq.")


ENCODERS = ("*encoder.*", "*vision*", "*visual.*", "*audio_tower*", "*speech*")
"""Patterns of names of modules that read an image, a sound or a text for a decoder, in models of transformers."""

_POSITIONS = ("*position*", "*pos_emb*", "*wpe*")


class LayerQuantization(LayerFields):
    """How torchao quantizes the weights of linear layers and embeddings; short for `source_transforms`."""

    @model_validator(mode="after")
    def _groups_are_used(self) -> Self:
        return self.check_groups()

    def check_groups(self) -> Self:
        """Raises ValueError for sizes of groups where no weights are quantized in groups."""
        if self.group_size and not {self.linear, self.encoder} & {"8da4w", "4w"}:
            raise ValueError("`group_size` is for int4 weights of linear layers, and there are none; leave it out")
        if self.rounding != "nearest" and not (self.linear or self.encoder not in (None, "float")):
            raise ValueError("`rounding` is for weights of linear layers, and none are quantized; leave it out")
        if self.equalize and not (self.linear or self.embedding):
            raise ValueError("`equalize` is for layers that are quantized, and none are; leave it out")
        if self.embedding_group_size and not self.embedding:
            raise ValueError("`embedding_group_size` needs `embedding`: int4 or int8")
        return self

    @property
    def transforms(self) -> tuple[SourceTransform, ...]:
        """The same as transforms; embeddings come before linear layers, which may share their weights."""
        sizes: dict[str, Any] = {"bits": 4 if (self.linear or "").endswith("4w") else 8}
        sizes["group_size"] = self.group_size or _GROUP
        transforms: list[SourceTransform] = [EqualizingTransform(equalize=each, **sizes) for each in self.equalize]
        if self.embedding:
            sharing = self.embedding_group_size or (_GROUP if self.embedding == "int4" else None)
            params: dict[str, JsonValue] = {"weight_dtype": self.embedding, "granularity": _granularity(sharing)}
            transform = TorchaoTransform(
                torchao="intx_weight_only", params=params, layers=("embedding",), exclude=_POSITIONS
            )
            transforms.append(transform)
        if self.linear:
            transforms.append(self._of_linear(self.linear, exclude=ENCODERS if self.encoder else ()))
        if self.encoder and self.encoder != "float":
            transforms.append(self._of_linear(self.encoder, filter=ENCODERS))
        return tuple(transforms)

    def _of_linear(self, scheme: LinearScheme, **chosen: Patterns) -> TorchaoTransform:
        four = scheme.endswith("4w")
        of_activations = "da" in scheme
        shared = "weight_granularity" if of_activations else "granularity"
        in_int8: dict[str, JsonValue] = {"weight_dtype": "int8", shared: _granularity(None)}
        in_int4: dict[str, JsonValue] = {"weight_dtype": "int4", shared: _granularity(self.group_size or _GROUP)}
        return TorchaoTransform(
            torchao="int8_dynamic_activation_intx_weight" if of_activations else "intx_weight_only",
            params=in_int4 if four else in_int8,
            otherwise=in_int8 if four else None,
            rounding=self.rounding,
            **chosen,
        )


_GROUP = 32


def _granularity(group: int | None) -> JsonValue:
    return {"per_group": group} if group else {"per_axis": 0}


class CallableTransform(FrozenModel):
    """Calls a function of the user's with the method's module."""

    callable: ObjectReference = Field(
        description="package.module:name of a function that changes the module in place, or returns another one."
    )
    kwargs: dict[str, JsonValue] = Field({}, description="Keyword arguments of the function.")
    files: tuple[Path, ...] = Field(
        (), description="Files that it reads, relative to this file; the method is exported again when they change."
    )


SourceTransform = Annotated[
    Annotated[TorchaoTransform, Tag("<torchao>")]
    | Annotated[CallableTransform, Tag("<callable>")]
    | Annotated[EqualizingTransform, Tag("<equalize>")],
    by_key(
        "torchao",
        "callable",
        "equalize",
        problem="must be a mapping with either `torchao`, the name of a config, `callable`, package.module:name, or "
        "`equalize`, rotate or awq",
    ),
]
"""Any transform."""
