"""What a user writes: models, recipes and zoos, and how they are read from YAML."""

from .load import LoadedZoo, load_zoo
from .metadata import Metadata
from .model import (
    DimRange,
    DynamicShapes,
    InputShape,
    Limits,
    MethodCall,
    MethodDefinition,
    ModelConfig,
    ModelDefinition,
)
from .nodes import Locations
from .presets import preset_names
from .quantize import Quantize, QuantizerChoice
from .recipe import CompileOptions, EdgeOptions, MethodOptions, Output, Recipe, Specialization
from .sources import BuilderSource, Dataset, ProgramSource
from .verification import Accuracy, VerifyBounds, VerifyOverrides
from .zoo import RunConfig, Zoo, zoo_schema

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
    "Metadata",
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
    "RunConfig",
    "Specialization",
    "VerifyBounds",
    "VerifyOverrides",
    "Zoo",
    "load_zoo",
    "preset_names",
    "zoo_schema",
]


def __dir__() -> list[str]:
    return __all__
