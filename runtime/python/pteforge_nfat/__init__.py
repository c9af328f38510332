"""Lets ExecuTorch's Python runtime run fat `.pte` files: call `load()` before loading their methods.

Loads libnfat_backend into this process, after checking that it matches the installed ExecuTorch.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

__all__ = ["Library", "LibraryError", "load"]

BACKEND_ID = "NfatBackend"
"""The backend that fat programs delegate to."""

_NAME = "libnfat_backend.dylib" if sys.platform == "darwin" else "libnfat_backend.so"
_RUNTIME_NAME = "libexecutorch.dylib" if sys.platform == "darwin" else "libexecutorch.so"
_VERSION_NAME = "executorch_version.txt"
_HERE = Path(__file__).parent


class LibraryError(RuntimeError):
    """The library is missing, does not match the installed ExecuTorch, or did not register its backend."""


@dataclass(frozen=True)
class Library:
    """The library, loaded; nfat_backend.h describes the C functions of its handle."""

    path: Path
    handle: ctypes.CDLL

    def verify_digests(self, level: str) -> None:
        """Sets how much of a payload is verified, for all methods that are loaded from now on.

        Args:
            level: ``none``; ``parsed`` (the default) for programs and compiled delegates; or ``all``, which includes
                weights.

        Raises:
            LibraryError: there is no such level.
        """
        if self.handle.nfat_backend_verify_digests(level.encode("utf-8", "replace")) != 0:
            raise LibraryError(f"{level!r} is no level of verification: none, parsed and all are")

    def remember_checks(self, file: Path | None, device: str = "") -> None:
        """Remembers in a file which payloads have passed the checks that they carry, to run each check only once.

        Args:
            file: its folder has to exist; None to check payloads at each load, as from the start.
            device: names device and drivers; payloads are checked again for another one.
        """
        name = None if file is None else os.fsencode(file)
        self.handle.nfat_backend_remember_checks(name, device.encode("utf-8", "replace"))

    def report(self) -> tuple[str, ...]:
        """One line for each payload that was tried when this thread last loaded a fat method."""
        size = self.handle.nfat_backend_report(None, 0) + 1
        text = ctypes.create_string_buffer(size)
        self.handle.nfat_backend_report(text, size)
        return tuple(text.value.decode("ascii", "replace").splitlines())


def load(folder: Path = _HERE) -> Library:
    """Loads the library; loading it again is harmless.

    Args:
        folder: contains `libnfat_backend` and `executorch_version.txt`; this package unless built elsewhere.

    Raises:
        LibraryError: the library does not match; the message says why and what to do.
    """
    path = folder / _NAME
    if not path.exists():
        raise LibraryError(f"{path} is missing: install the runtime with `pip install ./runtime --no-build-isolation`")
    spec = find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise LibraryError("executorch is not installed")
    package = Path(next(iter(spec.submodule_search_locations)))
    _check_version(folder)
    try:
        # Loads the runtime first, so that the library binds to the one that Python uses, whatever its RUNPATH.
        ctypes.CDLL(str(package / "lib" / _RUNTIME_NAME))
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(f"{path} cannot be loaded: {error}") from error
    handle.nfat_backend_executorch_version.restype = ctypes.c_char_p
    handle.nfat_backend_verify_digests.argtypes = [ctypes.c_char_p]
    handle.nfat_backend_remember_checks.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    handle.nfat_backend_remember_checks.restype = None
    handle.nfat_backend_report.restype = ctypes.c_size_t
    handle.nfat_backend_report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    _check_registration(path, handle)
    return Library(path, handle)


def _check_version(folder: Path) -> None:
    """Compares versions before loading: classes of another version may have other layouts."""
    built_for = (folder / _VERSION_NAME).read_text(encoding="ascii").strip()
    try:
        installed = version("executorch").partition("+")[0]
    except PackageNotFoundError as error:
        raise LibraryError("executorch is installed without metadata; its version cannot be checked") from error
    if installed != built_for:
        raise LibraryError(
            f"the library was built for executorch {built_for}, and {installed} is installed: "
            "build it again with `pip install ./runtime --no-build-isolation --force-reinstall`"
        )


def _check_registration(path: Path, handle: ctypes.CDLL) -> None:
    status = handle.nfat_backend_status()
    if status != 0:
        raise LibraryError(f"{path} could not register {BACKEND_ID}: ExecuTorch error {status:#x}")
    # With a second copy of the runtime, the backend would be registered there, invisible to Python.
    from executorch.runtime import Runtime  # noqa: PLC0415  # takes seconds

    if BACKEND_ID not in Runtime.get().backend_registry.registered_backend_names:
        raise LibraryError(f"{path} registered {BACKEND_ID} with another copy of ExecuTorch than Python's")
