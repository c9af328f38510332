"""What a file says about its model: labels, preprocessing, licence, where the model comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from .base import FrozenModel

EntryValue = str | int | float | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
"""A value in a file; see `formats.pte.metadata` for how each is stored."""

PROVENANCE = "general.provenance_sha256"
"""The key of the digest that is made when the file is written."""

QUANTIZED = "checkpoint.quantization"
"""The key of a quantized checkpoint's format."""

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
INTERPOLATIONS: tuple[str, ...] = get_args(Interpolation)
PerChannel = Annotated[tuple[float, ...], Field(min_length=1)]
Size = Annotated[int, Field(ge=1)]
_TokenId = Annotated[int, Field(ge=0)]


class ImagePreprocessing(FrozenModel):
    """How an image becomes the model's input: resized, cropped, rescaled, then normalized."""

    size: tuple[Size, Size] | None = Field(None, description="Height and width of the input, in pixels.")
    resize: StrictInt | None = Field(
        None, ge=1, description="Length of the shorter side before the middle is cropped, in pixels; null: no crop."
    )
    interpolation: Interpolation | None = Field(None, description="How it is resized.")
    channels: Literal["RGB", "BGR", "L"] | None = Field(None, description="Order of the color channels; L: grayscale.")
    rescale: float | None = Field(
        None, gt=0, description="Factor for pixel values from 0 to 255, such as 0.00392156862745098 for 1/255."
    )
    mean: PerChannel | None = Field(None, description="Subtracted from each channel, after `rescale`.")
    std: PerChannel | None = Field(None, description="Divides each channel, after `mean` was subtracted.")


class AudioPreprocessing(FrozenModel):
    """How sound becomes the model's input."""

    sampling_rate: StrictInt | None = Field(None, ge=1, description="Samples per second.")


class TokenizerMetadata(FrozenModel):
    """The tokenizer that belongs to the model."""

    model: str | None = Field(None, description="Its algorithm, such as BPE, WordPiece or Unigram.")
    vocab_size: StrictInt | None = Field(None, ge=1, description="Number of tokens that the model knows.")
    bos_token_id: StrictInt | None = Field(None, ge=0, description="Token that begins a text.")
    eos_token_ids: tuple[_TokenId, ...] | None = Field(None, min_length=1, description="Tokens that end a text.")
    chat_template: str | None = Field(None, description="Jinja template of a conversation.")


_KEY = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")


def _check_extra(extra: dict[str, ExtraValue]) -> dict[str, ExtraValue]:
    for key, value in extra.items():
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} must be namespace.field: lower-case letters, digits and underscores, with a dot")
        if key in KEYS or key.startswith(("general.", "output.", "sizes.")):
            raise ValueError(f"{key!r} cannot be in `extra`: it has a field of its own, or its namespace is pteforge's")
        numbers = value if isinstance(value, tuple) else [value]
        if any(isinstance(number, int) and not -(2**63) <= number < 2**63 for number in numbers):
            raise ValueError(f"{key!r} has a number of more than 64 bits")
    return extra


ExtraValue = StrictStr | StrictInt | StrictFloat | tuple[StrictInt, ...]


class Metadata(FrozenModel):
    """What a file says about its model. Each field becomes an entry under a key of ``namespace.field``."""

    name: str | None = Field(None, description="Name of the model for people.")
    architecture: str | None = Field(None, description="Name of its architecture, such as llama or resnet.")
    description: str | None = Field(None, description="One line for people.")
    license: str | None = Field(None, description="Licence of the weights, such as apache-2.0 (SPDX).")
    source: str | None = Field(None, description="Where the model comes from: a URL, or a name such as hf:org/name.")
    revision: str | None = Field(None, description="Commit or version of the source.")
    labels: tuple[str, ...] | None = Field(None, min_length=1, description="Names of classes, in the output's order.")
    labels_file: Path | None = Field(
        None, description="In place of `labels`, a text file with one on each line; relative to this file."
    )
    image: ImagePreprocessing = Field(ImagePreprocessing(), description="How images become inputs.")
    audio: AudioPreprocessing = Field(AudioPreprocessing(), description="How sound becomes inputs.")
    tokenizer: TokenizerMetadata = Field(TokenizerMetadata(), description="The tokenizer that belongs to the model.")
    context_length: StrictInt | None = Field(
        None, ge=1, description="Largest number of tokens of a language model, prompt and answer together."
    )
    extra: Annotated[dict[str, ExtraValue], AfterValidator(_check_extra)] = Field(
        {}, description="More entries by key (namespace.field): text, numbers, or lists of integers."
    )
    from_source: StrictBool = Field(
        True, description="Fill in missing fields from the model's source: builder, configuration, processors or card."
    )
    provenance: StrictBool = Field(
        True, description="Add the digest of what the file was made from and with, which its provenance explains."
    )
    constant_methods: StrictBool = Field(
        True, description="Also return entries from constant methods, for runtimes without access to named data."
    )

    @model_validator(mode="after")
    def _labels_once(self) -> Metadata:
        if self.labels and self.labels_file:
            raise ValueError("has `labels` as well as `labels_file`; write one of them")
        return self

    def written(self) -> dict[str, Any]:
        """The fields that were written, as JSON values, those that are null too."""
        return self.model_dump(mode="json", exclude_unset=True)

    def with_labels(self) -> Metadata:
        """Replaces `labels_file` by its labels; raises ValueError if it cannot be read or has none."""
        if self.labels_file is None:
            return self
        try:
            lines = self.labels_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{self.labels_file} cannot be read: {error}") from error
        labels = tuple(line.strip() for line in lines if line.strip())
        if not labels:
            raise ValueError(f"{self.labels_file} has no labels; write one on each line")
        others = self.model_dump(exclude_unset=True, exclude={"labels_file"})
        return Metadata.model_validate({**others, "labels": labels})

    def entries(self) -> dict[str, EntryValue]:
        """The entries of a file by key, in order, without the digest of the provenance."""
        return {key: value for key, value in self._entries() if value is not None} | self.extra

    def _entries(self) -> Iterator[tuple[str, EntryValue | None]]:
        for name in _GENERAL:
            yield f"general.{name}", getattr(self, name)
        yield LABELS, self.labels
        for namespace in _NAMESPACES:
            for name, value in getattr(self, namespace):
                if name != "eos_token_ids":
                    yield f"{namespace}.{name}", value
        if ends := self.tokenizer.eos_token_ids:
            yield "tokenizer.eos_token_id", ends[0]
            yield "tokenizer.eos_token_ids", ends if len(ends) > 1 else None
        yield "context.length", self.context_length


_GENERAL = ("name", "architecture", "description", "license", "source", "revision")
LABELS = "output.labels"
_NAMESPACES: dict[str, type[FrozenModel]] = {
    "image": ImagePreprocessing,
    "audio": AudioPreprocessing,
    "tokenizer": TokenizerMetadata,
}

KEYS = frozenset(
    {
        *(f"general.{name}" for name in _GENERAL),
        *(f"{namespace}.{name}" for namespace, model in _NAMESPACES.items() for name in model.model_fields),
        *(PROVENANCE, LABELS, "tokenizer.eos_token_id", "context.length"),
    }
)
"""All keys but those of `Metadata.extra`."""


def merged_metadata(first: Mapping[str, Any], second: Mapping[str, Any]) -> Metadata:
    """Merges `Metadata.written` fields: the first's, null too, replace the second's, as do labels of either kind."""
    if first.keys() & _LABELS:
        second = {name: value for name, value in second.items() if name not in _LABELS}
    return Metadata.model_validate(_merged(first, second))


_LABELS = {"labels", "labels_file"}


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(second)
    for name, value in first.items():
        other = second.get(name)
        merged[name] = _merged(value, other) if isinstance(value, Mapping) and isinstance(other, Mapping) else value
    return merged
