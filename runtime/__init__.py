"""Runs `.pte` files, fat and plain, in Python. Only ExecuTorch's wheel is needed, no native library or compiler."""

from .host import LoadedProgram, load, metadata

__all__ = ["LoadedProgram", "load", "metadata"]
