"""Lets ExecuTorch's Python runtime open fat `.pte` files: `pteforge_nfat.load()` before their methods are loaded."""

from .library import Library, LibraryError, load

__all__ = ["Library", "LibraryError", "load"]
