"""The Python package that loads the library."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def library(python_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """pteforge_nfat, which is not installed in the tests' environment."""
    monkeypatch.syspath_prepend(python_path)
    return importlib.import_module("pteforge_nfat")


def test_missing(library, tmp_path):
    """Without the library, the error says how to install it."""
    with pytest.raises(library.LibraryError, match=r"pip install \./runtime"):
        library.load(tmp_path)


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("1.4.0", r"built for executorch 1\.4\.0, and 1\.5\.1 is installed"),
        ("1.5.1", "cannot be loaded: .*libnfat_back"),
    ],
)
def test_unusable_library(library, tmp_path, version, problem):
    """A library for another ExecuTorch is refused before it is loaded; the loader's error is in the message."""
    (tmp_path / library._NAME).write_bytes(b"not a library")
    (tmp_path / "executorch_version.txt").write_text(f"{version}\n")
    with pytest.raises(library.LibraryError, match=problem):
        library.load(tmp_path)


_SCRIPT = """
import sys
from pathlib import Path
if sys.argv[2] == "executorch first":
    import executorch.runtime
import pteforge_nfat
library = pteforge_nfat.load(Path(sys.argv[1]))
assert pteforge_nfat.load(Path(sys.argv[1])).handle._handle == library.handle._handle
assert library.report() == ()
from executorch.runtime import Runtime
assert Runtime.get().backend_registry.is_available("NfatBackend")
"""


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first test builds
@pytest.mark.parametrize("order", ["executorch first", "library first"])
def test_registers(run_python, build, order):
    """Loading registers the backend with Python's ExecuTorch, in either order; loading twice is loading once."""
    run_python("-c", _SCRIPT, build, order)
