"""The Python package that loads the library."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def library(python_path: Path) -> ModuleType:
    """pteforge_nfat.library, which is not installed in the tests' environment."""
    spec = importlib.util.spec_from_file_location("nfat_library_of_tests", python_path / "pteforge_nfat" / "library.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_missing(library: ModuleType, tmp_path: Path) -> None:
    """Without the library, the error says how to install it."""
    with pytest.raises(library.LibraryError, match=r"pip install \./runtime"):
        library.load(tmp_path)


def test_other_version(library: ModuleType, tmp_path: Path) -> None:
    """A library for another ExecuTorch is refused before it is loaded: its file is not even one."""
    (tmp_path / library._NAME).write_bytes(b"not a library")
    (tmp_path / "executorch_version.txt").write_text("1.4.0\n")
    with pytest.raises(library.LibraryError, match=r"built for executorch 1\.4\.0, and 1\.5\.1 is installed"):
        library.load(tmp_path)


def test_not_a_library(library: ModuleType, tmp_path: Path) -> None:
    """A file that is no library is an error of ours, with the loader's words."""
    (tmp_path / library._NAME).write_bytes(b"not a library")
    (tmp_path / "executorch_version.txt").write_text("1.5.1\n")
    with pytest.raises(library.LibraryError, match=r"cannot be loaded: .*libnfat_backend"):
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
def test_registers(build: Path, python_path: Path, order: str) -> None:
    """Loading registers the backend where Python's ExecuTorch sees it, in either order, and twice is as once."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, build, order],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(python_path), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
