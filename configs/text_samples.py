"""Samples for evaluators of generated text: sounds, images or texts in a file, each with the text that is right."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..errors import SourceError
from .base import FrozenModel, describe_errors

METRICS = {
    "neg_word_error_rate": "jiwer",
    "bleu": "sacrebleu",
    "chrf": "sacrebleu",
    "exact_match": "",
    "vqa_accuracy": "",
}
"""Evaluators in `pteforge.evaluators` of generated text, and the package that each needs."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")


class TextOptions(FrozenModel):
    """Arguments of evaluators of generated text."""

    file: Path = Field(description="JSON Lines, or CSV with a header; relative to the zoo file's folder.")
    processor: str = Field(
        description="Tokenizer or processor of transformers: a folder relative to the zoo file, or a cached Hub name."
    )
    prompt: str = Field("{source}", description="Text for the model; {source} stands for the text of the sample.")
    chat: bool = Field(False, description="Whether the text becomes a user's message in the model's chat template.")
    decoder_prompt: str = Field(
        "",
        description="Text that the answer of an encoder-decoder begins with, such as Whisper's "
        "<|en|><|transcribe|><|notimestamps|>, or the token of a language.",
    )
    tokens: int = Field(128, ge=1, description="The most tokens to generate for a sample.")
    samples: int | None = Field(None, ge=1, description="How many samples to take; all if left out.")
    normalize: bool = Field(False, description="Whether case and punctuation are ignored; exact matches always do so.")


class TextSample(BaseModel):
    """One sample. Other fields, such as an id, are ignored."""

    model_config = ConfigDict(frozen=True)

    audio: Path | None = Field(None, description="A sound, relative to the file; so is `image`.")
    image: Path | None = None
    source: str = Field("", validation_alias=AliasChoices("source", "question"))
    answers: tuple[str, ...] = Field(min_length=1, validation_alias=AliasChoices("answers", "answer", "target", "text"))

    @field_validator("answers", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_an_input(self) -> TextSample:
        if not (self.audio or self.image or self.source):
            raise ValueError("there is nothing to generate from: give `audio`, `image`, `source` or `question`")
        if not all(map(str.strip, self.answers)):
            raise ValueError("an answer is empty")
        return self

    @property
    def media(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.audio, self.image) if path)


def check_text_options(kwargs: Mapping[str, Any], metric: str, folder: Path) -> tuple[Path, ...]:
    """Checks an evaluator's options; returns the files it reads, relative to `folder`. SourceError if it cannot run."""
    try:
        options = TextOptions.model_validate(kwargs)
    except ValidationError as error:
        raise SourceError(describe_errors(error)) from error
    samples = list(read_samples(folder / options.file, options.samples))
    needed = {"transformers": "hf", METRICS[metric]: "metrics"}
    for _, sample in samples:
        needed |= {"soundfile": "generate"} if sample.audio else {}
        needed |= {"PIL": "generate"} if sample.image else {}
    for package, extra in needed.items():
        if package and find_spec(package) is None:
            raise SourceError(f"{metric} needs {package}, which is not installed: pip install 'pteforge[{extra}]'")
    local = folder / options.processor
    parts = [path for path in sorted(local.iterdir()) if path.is_file()] if local.is_dir() else []
    media = (path for _, sample in samples for path in sample.media)
    files = [*media, *(path for path in parts if path.suffix not in _WEIGHTS)]
    return tuple(path.relative_to(folder) if path.is_relative_to(folder) else path for path in dict.fromkeys(files))


def read_samples(file: Path, most: int | None = None) -> Iterator[tuple[str, TextSample]]:
    """Yields up to `most` samples of a file, each with its location; raises SourceError with the line."""
    count = 0
    for line, values in _rows(file):
        where = f"{file}, line {line}"
        try:
            sample = TextSample.model_validate(values)
        except ValidationError as error:
            raise SourceError(f"{where}: {describe_errors(error)}") from error
        paths = {name: file.parent / path for name in ("audio", "image") if (path := getattr(sample, name))}
        if missing := [str(path) for path in paths.values() if not path.is_file()]:
            raise SourceError(f"{where}: there is no file {missing[0]}")
        yield where, sample.model_copy(update=paths)
        count += 1
        if count == most:
            return
    if not count:
        raise SourceError(f"{file} has no samples")


def _rows(file: Path) -> Iterator[tuple[int, Any]]:
    """Line numbers and values."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            if file.suffix.lower() == ".csv":
                reader = csv.DictReader(lines, strict=True)
                yield from ((reader.line_num, {key: text for key, text in row.items() if text}) for row in reader)
                return
            for number, line in enumerate(lines, 1):
                try:
                    if line.strip():
                        yield number, json.loads(line)
                except ValueError as error:
                    raise SourceError(f"{file}, line {number} is not JSON: {error}") from error
    except (OSError, UnicodeError, csv.Error) as error:
        raise SourceError(f"{file} cannot be read: {error}") from error
