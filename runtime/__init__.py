"""Runs `.pte` files, fat and plain, in Python. Only ExecuTorch's wheel is needed, no native library or compiler."""

from .generation import Generated, GenerationOptions, generate
from .host import LoadedProgram, load, metadata
from .pipelines import Label

__all__ = ["Generated", "GenerationOptions", "Label", "LoadedProgram", "generate", "load", "metadata"]


def __dir__() -> list[str]:
    return __all__
