"""Models: where one comes from, and what is particular to it. How it is lowered is the recipes' to say."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool, StrictInt

from .accuracy import Accuracy
from .base import FrozenModel
from .names import Names
from .quantities import Bytes, Seconds
from .shapes import DynamicShapes, check_names
from .sources import Dataset, Source
from .verify_bounds import VerifyOverrides


class Limits(FrozenModel):
    """What each stage of a model may use before it is killed."""

    timeout: Seconds = Field(
        default=600.0, description="Wall time of one stage: seconds, or text such as 90s, 10m, 1h30m."
    )
    memory: Bytes = Field(default=8 * 2**30, description="Memory of one stage: bytes, or text such as 512MiB, 4GiB.")


class ModelConfig(FrozenModel):
    """One model of a zoo."""

    source: Source = Field(description="A builder (package.module:callable), or a .pt2 file.")
    seed: StrictInt = Field(default=0, ge=0, lt=2**63, description="Seed of the random numbers that the builder draws.")
    strict: StrictBool = Field(default=False, description="Trace with torch.export's strict mode.")
    recipes: Names | None = Field(
        default=None, description="Recipes to lower the model with; left out: those of the zoo's defaults."
    )
    dynamic_shapes: Annotated[DynamicShapes, AfterValidator(check_names)] | None = Field(
        default=None,
        description="Instead of what the builder says: method name to a list with one entry per positional input. An "
        "entry is a mapping of dimension index to {min, max, name}, null where all is static, or a list of entries for "
        "an input that is a tuple.",
    )
    calibration: dict[str, Dataset] | None = Field(
        default=None,
        description="Method name to the dataset that quantizers calibrate on; others take the example inputs.",
    )
    limits: Limits = Field(default=Limits(), description="What each stage may use before it is killed.")
    verify: VerifyOverrides | None = Field(
        default=None, description="Bounds that replace those of the recipe, field by field."
    )
    accuracy: Accuracy | None = Field(
        default=None, description="What scores the files, or bounds: they replace those of the recipe, field by field."
    )
