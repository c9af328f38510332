"""Finding modules without importing anything."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from pteforge.tasks.engine.keys.search import ModuleOrigin, ModuleSearch

EDITABLE = """
import json, os, site, sys, zipfile
from pathlib import Path
from setuptools.build_meta import build_editable
from pteforge.tasks.engine.keys.search import ModuleSearch
project, site_packages = sys.argv[1:]  # setuptools replaces sys.argv
os.chdir(project)
sys.stdout, shown = sys.stderr, sys.stdout
wheel = build_editable(site_packages)
sys.stdout = shown
with zipfile.ZipFile(Path(site_packages, wheel)) as archive:
    archive.extractall(site_packages)
os.chdir("/")
site.addsitedir(site_packages)
found = [ModuleSearch().find(name) for name in ("acme", "acme.inner.leaf", "acme.missing")]
print(json.dumps([one and [one.origin.value, str(one.path)] for one in found] + ["acme" in sys.modules]))
"""


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        *((name, ModuleOrigin.STDLIB) for name in ("sys", "os", "json", "json.decoder", "math")),
        *((name, ModuleOrigin.INSTALLED) for name in ("yaml", "_pytest.config", "numpy.linalg")),
        *((name, ModuleOrigin.INSTALLED) for name in ("torch.nn.functional", "google.protobuf")),
        ("google", ModuleOrigin.NAMESPACE),
    ],
)
def test_modules_of_the_environment(name, origin):
    """Python's own modules, installed ones and namespaces are distinguished; files are those that Python finds."""
    assert ModuleSearch().find(name).origin is origin
    if name.partition(".")[0] in {"json", "yaml", "_pytest", "numpy"}:  # parents that may be imported
        assert str(ModuleSearch().locate(name)) == find_spec(name).origin


@pytest.mark.parametrize(
    "name",
    ["nowhere", "nowhere.at.all", "json.nowhere", "json.decoder.deeper", "sys.deeper", "", "json..decoder", "json."],
)
def test_what_is_not_there_is_none(name):
    """A name that leads nowhere, or that is no module name, gives None."""
    assert ModuleSearch().find(name) is None
    assert ModuleSearch().locate(name) is None


def test_python_path_comes_first_and_in_order(write_tree, tmp_path):
    """Given folders win over installed modules and over later folders; what is in them is local."""
    write_tree({"one/yaml.py": "", "one/a.py": "", "two/a.py": "", "two/pkg/__init__.py": "", "two/pkg/b.py": ""})
    finder = ModuleSearch((tmp_path / "one", tmp_path / "two"))
    paths = {"yaml": "one/yaml.py", "a": "one/a.py", "pkg": "two/pkg/__init__.py", "pkg.b": "two/pkg/b.py"}
    found = {name: finder.find(name) for name in paths}
    assert {name: module.path.relative_to(tmp_path).as_posix() for name, module in found.items()} == paths
    assert {module.origin for module in found.values()} == {ModuleOrigin.LOCAL}
    assert (found["pkg"].package, found["pkg.b"].package, found["a"].package) == ("pkg", "pkg", "")


@pytest.mark.parametrize(
    ("file", "folders", "name", "origin"),
    [
        ("sys.py", ["."], "sys", ModuleOrigin.STDLIB),  # modules that Python loads at its start cannot be replaced
        ("os.py", ["."], "os", ModuleOrigin.STDLIB),
        ("venv/lib/site-packages/yaml/__init__.py", [".", "venv/lib/site-packages"], "yaml", ModuleOrigin.INSTALLED),
        # A file that somebody put there by hand has no version, so its content has to count.
        ("site-packages/handmade_module.py", ["site-packages"], "handmade_module", ModuleOrigin.LOCAL),
        ("site-packages/acme/zoo/yaml.py", ["site-packages/acme/zoo"], "yaml", ModuleOrigin.LOCAL),
    ],
)
def test_origins_within_the_search_path(write_tree, file, folders, name, origin):
    """Whose code a file is follows from the given folder that it is in, and from site-packages below or above it."""
    root = write_tree({file: ""})
    assert ModuleSearch(tuple(root / folder for folder in folders)).find(name).origin is origin


def test_editable_install_is_local(write_tree, run_python, tmp_path):
    """A package that setuptools installed editable, by a finder of its own, is found at its source and is local."""
    source = write_tree(
        {
            "project/pyproject.toml": '[build-system]\nrequires = ["setuptools"]\n'
            '[project]\nname = "acme"\nversion = "1"\n'
            '[tool.setuptools]\npackages = ["acme", "acme.inner"]\n[tool.setuptools.package-dir]\nacme = "."\n',
            "project/__init__.py": "raise SystemExit",
            "project/inner/__init__.py": "raise SystemExit",
            "project/inner/leaf.py": "",
        }
    )
    (tmp_path / "site-packages").mkdir()
    found = run_python(EDITABLE, source / "project", tmp_path / "site-packages")
    assert found == [
        ["local", str(Path(source, "project/__init__.py"))],
        ["local", str(Path(source, "project/inner/leaf.py"))],
        None,
        False,
    ]
