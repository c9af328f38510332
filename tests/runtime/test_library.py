"""The Python package that loads the library, also as pip installs it."""

import importlib
import subprocess
import sys
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


_RUNTIME = Path(__file__).parents[2] / "runtime"

_USE = """
import sys, pteforge_nfat
from executorch.runtime import Runtime
import torch
assert sys.argv[1] in pteforge_nfat.__file__, pteforge_nfat.__file__
library = pteforge_nfat.load()
method = Runtime.get().load_program(sys.argv[2]).load_method("forward")
calls, outputs = torch.load(sys.argv[3])["forward"], torch.load(sys.argv[4])
assert torch.equal(method.execute(calls[0])[0], outputs[0])
assert library.report()[-1].startswith("xnnpack: chosen: ")
library.verify_digests("all")
try:
    library.verify_digests("most")
except pteforge_nfat.LibraryError as error:
    print(error)
"""


def _run(venv: Path, *arguments: str | Path) -> str:
    command = [venv / "bin" / "python", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=venv.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}


@pytest.fixture
def venv(tmp_path) -> Path:
    """A virtual environment that sees the packages of the tests' environment, such as scikit-build-core."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # --system-site-packages would show those of the interpreter that the tests' environment was made from.
    (packages / "of_the_tests.pth").write_text("".join(f"{each}\n" for each in sys.path if "site-packages" in each))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)  # it builds
@pytest.mark.usefixtures("outcomes")
def test_install_and_uninstall(venv, programs):
    """Installing does not change the source folder, fat files run, and uninstalling leaves nothing behind."""
    before, sources = _files(venv), _files(_RUNTIME)
    _run(venv, "-m", "pip", "install", _RUNTIME, "--no-build-isolation", "--no-deps")
    assert _files(_RUNTIME) == sources
    (tags,) = (path for path in _files(venv) - before if path.name == "WHEEL")
    assert "Tag: py3-none-" in tags.read_text()
    files = (path.relative_to(venv).as_posix() for path in _files(venv) - before if path.is_file())
    assert {name.split("/", 3)[-1] for name in files if ".dist-info/" not in name} == {
        f"pteforge_nfat/{name}" for name in ("__init__.py", "py.typed", "libnfat_backend.so", "executorch_version.txt")
    }
    arguments = [programs / f"v2.{name}" for name in ("pte", "calls.pt", "outputs.pt")]
    assert _run(venv, "-c", _USE, venv, *arguments) == "'most' is no level of verification: none, parsed and all are\n"
    _run(venv, "-m", "pip", "uninstall", "--yes", "pteforge-nfat")
    assert _files(venv) == before
