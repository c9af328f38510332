"""What a user writes: models, recipes and zoos, and how they are read from YAML."""

from __future__ import annotations

from .accuracy import Accuracy
from .compile_options import CompileOptions
from .definition import MethodCall, MethodDefinition, ModelDefinition
from .edge import EdgeOptions
from .load import LoadedZoo, load_zoo
from .locations import Locations
from .methods import MethodOptions
from .model import Limits, ModelConfig
from .presets import preset_names
from .quantize import Quantize, QuantizerChoice
from .recipe import Output, Recipe, Specialization
from .schema import zoo_schema
from .shapes import DimRange, DynamicShapes, InputShape
from .sources import BuilderSource, Dataset, ProgramSource
from .verify_bounds import VerifyBounds, VerifyOverrides
from .zoo import Zoo

__all__ = [
    "Accuracy",
    "BuilderSource",
    "CompileOptions",
    "Dataset",
    "DimRange",
    "DynamicShapes",
    "EdgeOptions",
    "InputShape",
    "Limits",
    "LoadedZoo",
    "Locations",
    "MethodCall",
    "MethodDefinition",
    "MethodOptions",
    "ModelConfig",
    "ModelDefinition",
    "Output",
    "ProgramSource",
    "Quantize",
    "QuantizerChoice",
    "Recipe",
    "Specialization",
    "VerifyBounds",
    "VerifyOverrides",
    "Zoo",
    "load_zoo",
    "preset_names",
    "zoo_schema",
]
