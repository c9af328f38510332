"""How produced files are judged: bounds on their difference from eager, and accuracy gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, Strict, StrictBool, StrictInt, model_serializer

from .base import FrozenModel, Name, ObjectReference
from .places import HOST
from .sources import BuilderSource, reading

Number = Annotated[float, Strict()]  # a number; text that looks like one is not


ERROR_BOUNDS = ("max_abs_error", "max_relative_error", "min_sqnr_db", "min_agreement")
"""Fields that say how far outputs may be from eager's."""


class VerifyBounds(FrozenModel):
    """Bounds on a produced file's outputs compared with eager's, for every example input and every random one.

    The defaults suit fp32: small networks stay above 130 dB; a computation silently in fp16 would reach about 65 dB.
    """

    max_abs_error: Number | None = Field(None, ge=0, description="Largest absolute difference; null: not checked.")
    max_relative_error: Number | None = Field(
        None,
        ge=0,
        description="Largest difference of any element relative to eager's; null: not checked. Elements near zero make "
        "it large where nothing is wrong.",
    )
    min_sqnr_db: Number | None = Field(
        80.0,
        description="Smallest signal-to-quantization-noise ratio of any output, in decibels; null: not checked. "
        "Relaxed to at most 40 for float16 outputs and at most 22 for bfloat16 ones.",
    )
    min_agreement: Number | None = Field(
        None,
        ge=0,
        le=1,
        description="Smallest share of integers and booleans in an output that equal eager's, over all its cases: they "
        "have no SQNR. null: 0.99, or 0.5 where min_sqnr_db is below 60, as where a recipe quantizes.",
    )
    min_part_sqnr_db: Number | None = Field(
        3.0,
        description="Smallest signal-to-quantization-noise ratio, in decibels, of a part of an output (columns, "
        "channels) whose values are much smaller than all others, as scores are next to boxes in pixels. A part that "
        "is constant in the file and varies in eager fails, too. null: not checked, as where min_sqnr_db is null.",
    )
    drawn_inputs: StrictInt = Field(
        2,
        ge=0,
        description="Random inputs to try per method after the examples, within the bounds of its dynamic shapes; if "
        "it has any, at least three, where this is not 0 or 1: both bounds, and sizes between them.",
    )

    @property
    def least_agreement(self) -> float | None:
        """The bound for agreement; None where none is checked."""
        if self.min_agreement is not None or self.min_sqnr_db is None:
            return self.min_agreement
        return 0.99 if self.min_sqnr_db >= _EXACT_DB else 0.5


_EXACT_DB = 60.0  # what no recipe asks for that quantizes


class InputSearch(FrozenModel):
    """A search for inputs on which a file is wrong: of every size that it takes, with all kinds of values."""

    seconds: Number = Field(20.0, gt=0, le=3600, description="How long to search, for all payloads of a file together.")
    seed: StrictInt = Field(0, ge=0, lt=2**31, description="Another seed tries other values.")


class Verification(VerifyBounds):
    """How a recipe's files are verified: the bounds, and whether every step is compared."""

    required: StrictBool = Field(
        True,
        description="false: a plain file whose backend this machine's runtime lacks is made all the same, and reported "
        "as not run; its edge programs are compared with eager in its place.",
    )
    ladder: StrictBool = Field(
        False, description="true: also compare the program after each step with eager, as for recipes that quantize."
    )
    on: tuple[Name, ...] = Field(
        (HOST,),
        description="Where files are run and compared: `host`, this machine's runtime, and any of the zoo's `places`. "
        "Every payload of a fat file is run wherever its backends are.",
    )
    runtime: str | None = Field(
        None,
        min_length=1,
        description="What has to be able to load the file: a contract file of `pteforge contract`, relative to the zoo "
        "file, or a release of ExecuTorch, in quotes, such as '1.4'. null: not checked.",
    )
    search: InputSearch | None = Field(
        None,
        description="Search for inputs on which the file is out of bounds around its exported program, or around the "
        "quantized one; null: do not. What is found is run again in each later verification of the model.",
    )

    bench: StrictBool = Field(
        False, description="true: also time loading and calls on each of these places, while nothing else runs here."
    )

    def also_on(self, places: Sequence[str]) -> Verification:
        return self.model_copy(update={"on": tuple(dict.fromkeys((*self.on, *places)))})

    @property
    def bounds(self) -> VerifyBounds:
        return VerifyBounds.model_validate({name: getattr(self, name) for name in VerifyBounds.model_fields})


class _WrittenFields(FrozenModel):
    """A model that serializes the fields that were set, and no others, so that JSON keeps `model_fields_set`."""

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}


class VerifyOverrides(VerifyBounds, _WrittenFields):
    """The bounds that a model changes: fields that it does not write are the recipe's."""

    def applied_to(self, bounds: VerifyBounds) -> VerifyBounds:
        return bounds.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


class Accuracy(_WrittenFields):
    """How good a produced file must be at its task.

    A recipe may give all or some of the fields; those of the model replace the recipe's. Files are scored if the two
    together give an evaluator and a bound.
    """

    evaluator: ObjectReference | None = Field(
        None,
        description="package.module:callable, called as evaluator(predict, **kwargs); it returns the score, a number "
        "that is higher for better files. predict(*inputs, method='forward') runs the file.",
    )
    kwargs: dict[str, JsonValue] = Field({}, description="Keyword arguments of the evaluator.")
    files: tuple[Path, ...] = Field(
        (), description="Files or folders that it reads, relative to the zoo file; changes to them score files again."
    )
    floor: Number | None = Field(None, description="Lowest acceptable score; null: none.")
    max_drop: Number | None = Field(None, ge=0, description="How far the score may be below eager's; null: no limit.")
    keep: Number | None = Field(None, gt=0, le=1, description="Least share of eager's score; null: no limit.")

    @property
    def bounded(self) -> bool:
        """Whether there is a bound."""
        return any(bound is not None for bound in (self.floor, self.max_drop, self.keep))

    def applied_to(self, other: Accuracy) -> Accuracy:
        """`other` with the fields replaced that are written here; another evaluator comes with its own arguments."""
        written = set(self.model_fields_set)
        if "evaluator" in written:
            written |= {"kwargs", "files"}
        return other.model_copy(update={name: getattr(self, name) for name in written})


class AccuracyGate(FrozenModel):
    """The accuracy that one file must reach, from its recipe and model together; see `Accuracy`."""

    evaluator: BuilderSource
    floor: float | None
    max_drop: float | None
    keep: float | None = None

    def with_arguments(self, kwargs: Mapping[str, JsonValue]) -> AccuracyGate:
        """The gate with other arguments of its evaluator in place of those of the same names."""
        evaluator = self.evaluator.model_copy(update={"kwargs": {**self.evaluator.kwargs, **kwargs}})
        return self.model_copy(update={"evaluator": evaluator})


def resolve_gate(
    recipe: Accuracy | None, model: Accuracy | None, bounds: Mapping[str, float] = MappingProxyType({})
) -> AccuracyGate | None:
    """The gate for a file, with other `bounds` by their fields where these are given; None if it is not scored.

    Raises ValueError for a bound without an evaluator, and for a recipe's evaluator without a bound.
    """
    both = model.applied_to(recipe or Accuracy()) if model else recipe or Accuracy()
    if bounds:
        both = both.model_copy(update={"max_drop": None, "keep": None, **bounds})
    if both.evaluator is None and both.bounded:
        raise ValueError("bounds accuracy, but neither the recipe nor the model names an `evaluator`")
    if both.evaluator and recipe and recipe.evaluator and not both.bounded:
        raise ValueError("names an evaluator, but no bound; add `floor`, `max_drop` or `keep`")
    if both.evaluator is None or not both.bounded:
        return None
    source = reading(both.evaluator, both.kwargs, both.files)
    return AccuracyGate(evaluator=source, floor=both.floor, max_drop=both.max_drop, keep=both.keep)
