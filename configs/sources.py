"""Sources of models and samples: a Python builder, an exported program in a file, a dataset."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, StrictBool, StrictInt, Tag, field_validator, model_validator

from .base import FrozenModel, ObjectReference, by_key


class BuilderSource(FrozenModel):
    """Python code that makes the model.

    The reference names a callable that returns a `pteforge.ModelDefinition` or a pair of a module and its example
    inputs, or a class with the methods of ExecuTorch's ``EagerModelBase``: ``get_eager_model``, ``get_example_inputs``
    and optionally ``get_dynamic_shapes``. The worker finds out which.
    """

    builder: ObjectReference = Field(description="package.module:callable, from python_path or the environment.")
    kwargs: dict[str, JsonValue] = Field({}, description="Keyword arguments of the callable.")
    files: tuple[Path, ...] = Field(
        (), description="Files that the builder reads, such as checkpoints; the model is built again when they change."
    )


class ProgramSource(FrozenModel):
    """A program that ``torch.export.save`` wrote."""

    program: Path = Field(description="Path of the .pt2 file.")


ResolvedSource = BuilderSource | ProgramSource
"""What a stage can run: a model's name has become the builder that makes it."""


TASKS = (
    *("any-to-any", "audio-classification", "audio-text-to-text", "automatic-speech-recognition", "decision"),
    *("depth-estimation", "document-question-answering", "feature-extraction", "fill-mask"),
    *("image-classification", "image-feature-extraction", "image-segmentation", "image-text-to-text"),
    *("keypoint-matching", "mask-generation", "object-detection", "sentence-similarity"),
    *("table-question-answering", "text-classification", "text-generation", "text-to-audio"),
    *("text2text-generation", "token-classification", "video-classification", "zero-shot-audio-classification"),
    *("zero-shot-classification", "zero-shot-image-classification", "zero-shot-object-detection"),
)
"""Those of transformers 5.24, which may have more by now, and the Hub's name for those of sentence-transformers."""

SENTENCES = "sentence-similarity"

LinearScheme = Literal["8da4w", "8da8w", "4w", "8w"]
"""Bits of weights of linear layers, and of activations, whose scales are computed at run time, before `da`."""

Rounding = Literal["nearest", "gptq", "hqq"]
"""How weights become integers."""

ROUNDING = (
    "nearest: each weight becomes the nearest integer. gptq: integers are chosen so that the layers' outputs change "
    "least on the samples of the model's `calibration`. hqq: scales are those by which few weights lose much, without "
    "samples. Bytes and kernels are the same."
)


Equalization = Literal["rotate", "awq"]
"""What is done to a decoder whose layers compute the same afterwards."""

EQUALIZE = (
    "rotate: states and values of attention are multiplied by a Hadamard matrix, which spreads outliers over all "
    "channels (SpinQuant without training). awq: scales are moved from inputs of layers to their weights, as samples "
    "of the model's `calibration` say (AWQ). Both are for decoders built as Llama's, and add no operator."
)


class LayerFields(FrozenModel):
    """Which linear layers and embeddings are quantized, and how."""

    linear: LinearScheme | None = Field(
        None,
        description="Linear layers: 8da4w: int4 weights, and int8 activations as they come. 8da8w: int8 weights. 4w, "
        "8w: weights only. null: in floating point.",
    )
    group_size: StrictInt | None = Field(
        None, ge=1, description="How many int4 weights of linear layers share a scale; null: 32. Those in int8: a row."
    )
    rounding: Rounding = Field("nearest", description=f"Weights of linear layers. {ROUNDING}")
    equalize: tuple[Equalization, ...] = Field((), description=f"Before layers are quantized. {EQUALIZE}")
    embedding: Literal["int4", "int8"] | None = Field(
        None, description="Weights of embeddings, other than those of positions; null: in floating point."
    )
    embedding_group_size: StrictInt | None = Field(
        None, ge=1, description="How many weights of embeddings share a scale; null: 32 in int4, a row in int8."
    )
    encoder: LinearScheme | Literal["float"] | None = Field(
        None, description="Linear layers of text, image and sound encoders; float: unquantized; null: as `linear`."
    )


_Size = Annotated[StrictInt, Field(ge=1)]


class HuggingFaceSource(FrozenModel):
    """A model of transformers, by the name of its repository or by its folder."""

    huggingface: str = Field(
        min_length=1,
        description="A repository of the Hugging Face hub, such as org/name; a folder in its layout, which begins with "
        "./, ../ or /; or, with `config`, the model_type of a configuration.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of the repository; left out: main.")
    gguf: str | None = Field(None, min_length=1, description="Name of its GGUF file; weights become floating point.")
    adapter: str | None = Field(
        None, min_length=1, description="An adapter in PEFT's layout: a repository, or a folder (./, ../ or /)."
    )
    merge: StrictBool = Field(
        True,
        description="Whether the adapter is merged into the weights. false: the file computes with both; the adapter's "
        "weights are called *.lora_A and *.lora_B, and `external_data` can keep them outside.",
    )
    adapter_revision: str | None = Field(None, description="Branch, tag or commit of the adapter; left out: main.")
    task: str | None = Field(
        None,
        description="Task of a pipeline of transformers, such as fill-mask, or sentence-similarity for embeddings as "
        "sentence-transformers makes them; left out: what the model is made for.",
    )
    config: dict[str, JsonValue] | None = Field(
        None, description="Fields of the configuration that replace the model's own. The weights are random then."
    )
    batch: StrictInt | None = Field(None, ge=1, description="Largest batch; 1: no dimension for it varies.")
    sequence: StrictInt | None = Field(
        None,
        ge=2,
        description="Most tokens of an input; of a model that generates text, of prompt and answer together, or, "
        "if it has an encoder, of each.",
    )
    padding: Literal["max_length"] | None = Field(
        None,
        description="max_length: texts are padded to `sequence` tokens, and their mask says which ones are; no size "
        "varies, and `batch` is 1 if left out. Left out: sizes vary.",
    )
    image_size: _Size | tuple[_Size, _Size] | None = Field(
        None, description="Size of images: a number, or [height, width]; left out: what the model was made for."
    )
    outputs: tuple[str, ...] | None = Field(None, description="Names of the outputs to keep.")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="Type of weights, caches and computation; inputs and outputs are float32. Left out: float32."
    )
    attention: Literal["custom_sdpa"] | None = Field(
        None,
        description="Attention of a model that generates text by ExecuTorch's operators `llama::custom_sdpa` and "
        "`llama::update_cache`; left out: by torch's.",
    )
    cache: Literal["int8"] | None = Field(
        None, description="What keys and values are kept in, with `attention: custom_sdpa`; left out: floating point."
    )
    quantize_layers: LayerFields | None = Field(
        None, description="Fields that replace those of `quantize_layers` in the model's recipes that have it."
    )
    sinks: StrictInt | None = Field(
        None,
        ge=1,
        description="Number of first tokens that a model keeps when it generates beyond its context: it sees those and "
        "the last ones, `sequence` in all; left out: it sees all tokens, and stops at `sequence`.",
    )
    prefill: StrictBool | None = Field(
        None,
        description="Whether a model that generates text has two methods, `prefill` for prompts and `decode_step` "
        "for one token, in place of `forward`. They share a cache: the recipe needs "
        "`compile: {share_mutable_buffers: true}`.",
    )
    tokens_per_call: StrictInt | None = Field(
        None,
        ge=2,
        description="Most tokens that one call of a model that generates text takes, for which its memory is planned; "
        "longer prompts come in several calls. Left out: `sequence`.",
    )
    logits: Literal["last", "all"] | None = Field(
        None,
        description="all: a model that generates text returns logits after each token, [1, tokens, vocabulary], as "
        "scores of texts and speculative decoding need; left out: after the last one, [1, vocabulary].",
    )
    audio_frames: StrictInt | None = Field(
        None,
        ge=1,
        description="Frames of sound per `audio_encoder` call, or most samples or frames of a model with CTC; left "
        "out: 30 seconds or the model's window.",
    )

    @field_validator("task")
    @classmethod
    def _is_no_typo(cls, task: str | None) -> str | None:
        close = difflib.get_close_matches(task or "", TASKS, n=1, cutoff=0.9)
        if close and task not in TASKS:
            raise ValueError(f"transformers knows no task {task!r}; did you mean {close[0]!r}?")
        return task

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        if self.cache and not self.attention:
            raise ValueError("cache: int8 is read by ExecuTorch's own attention: add `attention: custom_sdpa`")
        if self.config is not None and (self.gguf or self.adapter):
            raise ValueError("config: the weights of its model are random: leave `gguf` and `adapter` out")
        return self


class TimmSource(FrozenModel):
    """A model of timm."""

    timm: str = Field(min_length=1, description="Name of the model, such as mobilenetv4_conv_small.e2400_r224_in1k.")
    pretrained: StrictBool = Field(True, description="Whether to load weights; else random.")
    kwargs: dict[str, JsonValue] = Field({}, description="More arguments of timm.create_model.")


class TorchvisionSource(FrozenModel):
    """A model of torchvision."""

    torchvision: str = Field(min_length=1, description="Name of the model, such as resnet18.")
    weights: str | None = Field("DEFAULT", description="Its weights, such as IMAGENET1K_V1; null: random.")


SHIPPED_EVALUATORS = "pteforge.evaluators"
_PATHS = ("file", "folder", "text", "tokens")
"""Arguments of the functions in `pteforge.evaluators` that are paths, relative to the zoo file's folder."""


def reading(function: ObjectReference, kwargs: Mapping[str, JsonValue], files: Sequence[Path]) -> BuilderSource:
    """A function and the files that it reads, with those that the arguments of a shipped one name."""
    named = (kwargs.get(name) for name in _PATHS) if function.startswith(SHIPPED_EVALUATORS) else ()
    paths = (Path(path) for path in named if isinstance(path, str))
    return BuilderSource(builder=function, kwargs=dict(kwargs), files=(*files, *paths))


class Dataset(FrozenModel):
    """Python code that yields samples."""

    dataset: ObjectReference = Field(
        description="package.module:name of an iterable, or of a callable that returns one. Each sample is a tuple of "
        "positional inputs, or the only input."
    )
    kwargs: dict[str, JsonValue] = Field({}, description="Keyword arguments of the callable.")
    files: tuple[Path, ...] = Field(
        (), description="Files that it reads, relative to the zoo file; samples are read again when they change."
    )
    samples: StrictInt = Field(128, ge=1, description="Maximum number of samples to take.")
    shuffle: StrictInt | None = Field(
        None,
        ge=0,
        description="Seed by which samples are drawn from the whole dataset, which has a length; null: the first ones.",
    )

    @property
    def source(self) -> BuilderSource:
        """The dataset as stages read it."""
        return reading(self.dataset, self.kwargs, self.files)


class NamedFunction(FrozenModel):
    """A function of the user's, named by where it is imported from."""

    callable: ObjectReference
    kwargs: dict[str, JsonValue] = Field({}, description="Keyword arguments of the function.")

    @property
    def source(self) -> BuilderSource:
        """The function as stages run it."""
        return BuilderSource(builder=self.callable, kwargs=self.kwargs)


PROGRAM_SUFFIX = ".pt2"
_SCHEMES = {"hf": "huggingface", "timm": "timm", "torchvision": "torchvision"}
"""What a name begins with, and the key that it is short for: ``hf:org/name``."""


def is_folder(text: str) -> bool:
    """Whether a model's name is the path of a folder."""
    return text.startswith(("./", "../", "/")) or text in {".", ".."}


def names_model(text: str) -> bool:
    """Whether text is the name of a model of a library, such as ``hf:org/name``."""
    scheme, colon, name = text.partition(":")
    return bool(colon and name) and scheme in _SCHEMES


def is_program(text: str) -> bool:
    """Whether text is the path of a program that ``torch.export.save`` wrote."""
    return text.endswith(PROGRAM_SUFFIX)


def expand_source(text: str) -> tuple[str, str]:
    """The key that a source written as text is short for, and its value."""
    scheme, _, name = text.partition(":")
    if names_model(text):
        return _SCHEMES[scheme], name
    return ("program" if is_program(text) else "builder"), text


_PROBLEM = (
    "must be 'package.module:callable', the path of a .pt2 file, 'hf:NAME', 'timm:NAME' or 'torchvision:NAME', "
    "or a mapping with one of the keys builder, program, huggingface, timm, torchvision"
)

Source = Annotated[
    Annotated[BuilderSource, Tag("<builder>")]
    | Annotated[ProgramSource, Tag("<program>")]
    | Annotated[HuggingFaceSource, Tag("<huggingface>")]
    | Annotated[TimmSource, Tag("<timm>")]
    | Annotated[TorchvisionSource, Tag("<torchvision>")],
    by_key("builder", "program", "huggingface", "timm", "torchvision", problem=_PROBLEM),
    BeforeValidator(lambda written: dict([expand_source(written)]) if isinstance(written, str) else written),
]
"""Any source; text is short for a mapping with one key."""
