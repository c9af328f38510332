"""Lets ExecuTorch's Python runtime run fat `.pte` files: call `load()` before loading their methods."""

from .library import Library, LibraryError, load

__all__ = ["Library", "LibraryError", "load"]
