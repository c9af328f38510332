"""The public names of the package."""

from __future__ import annotations

import pteforge.configs


def test_the_public_names():
    """What others may import from the package is this list, and all of it is there."""
    assert pteforge.configs.__all__ == [
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
    for name in pteforge.configs.__all__:
        assert hasattr(pteforge.configs, name)
