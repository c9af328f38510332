"""Finding modules without importing anything."""

from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import pytest
from pteforge.tasks.keys.search import ModuleSearch, Origin

EDITABLE = """
import json, os, site, sys, zipfile
from pathlib import Path
from setuptools.build_meta import build_editable
from pteforge.tasks.keys.search import ModuleSearch
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
    "name", ["json", "json.decoder", "yaml", "yaml.nodes", "pytest", "_pytest.config", "numpy.linalg"]
)
def test_finds_what_python_finds(name):
    """For modules whose parents may be imported, the file is the one that the import system names."""
    assert str(ModuleSearch().locate(name)) == find_spec(name).origin


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("sys", Origin.STDLIB),
        ("os", Origin.STDLIB),
        ("json.decoder", Origin.STDLIB),
        ("math", Origin.STDLIB),
        ("yaml", Origin.INSTALLED),
        ("torch.nn.functional", Origin.INSTALLED),
        ("google.protobuf", Origin.INSTALLED),
        ("google", Origin.NAMESPACE),
    ],
)
def test_origins_of_the_environment(name, origin):
    """Python's own modules, installed ones and namespaces are told apart."""
    assert ModuleSearch().find(name).origin is origin


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
    search = ModuleSearch((tmp_path / "one", tmp_path / "two"))
    found = {name: search.find(name) for name in ("yaml", "a", "pkg", "pkg.b")}
    assert {name: one.path.relative_to(tmp_path).as_posix() for name, one in found.items()} == {
        "yaml": "one/yaml.py",
        "a": "one/a.py",
        "pkg": "two/pkg/__init__.py",
        "pkg.b": "two/pkg/b.py",
    }
    assert {one.origin for one in found.values()} == {Origin.LOCAL}
    assert (found["pkg"].package, found["pkg.b"].package, found["a"].package) == ("pkg", "pkg", "")


def test_modules_loaded_at_start_cannot_be_replaced(write_tree):
    """A local ``sys.py`` or ``os.py`` is not what ``import os`` gives."""
    folder = write_tree({"sys.py": "", "os.py": ""})
    assert [ModuleSearch((folder,)).find(name).origin for name in ("sys", "os")] == [Origin.STDLIB] * 2


def test_environment_within_the_project(write_tree):
    """A virtual environment inside a given folder does not make its packages local."""
    folder = write_tree({"venv/lib/site-packages/yaml/__init__.py": "", "model.py": ""})
    site_packages = folder / "venv" / "lib" / "site-packages"
    assert ModuleSearch((folder, site_packages)).find("yaml").origin is Origin.INSTALLED


def test_file_without_a_distribution_is_local(write_tree):
    """A file that somebody put into site-packages by hand has no version, so its content has to count."""
    folder = write_tree({"site-packages/handmade_module.py": ""}) / "site-packages"
    assert ModuleSearch((folder,)).find("handmade_module").origin is Origin.LOCAL


def test_zoo_within_a_distribution_is_local(write_tree):
    """A given folder below site-packages holds the user's code."""
    folder = write_tree({"site-packages/acme/zoo/yaml.py": ""}) / "site-packages" / "acme" / "zoo"
    assert ModuleSearch((folder,)).find("yaml").origin is Origin.LOCAL


def test_nested_namespaces_with_unimported_parents(write_tree):
    """Folders without ``__init__`` are found at any depth, where Python's own finder needs the parents imported."""
    folder = write_tree({"space/inner/deep/leaf.py": ""})
    with pytest.raises(KeyError):
        PathFinder.find_spec("space.inner", [str(folder / "space")])
    search = ModuleSearch((folder,))
    assert search.find("space.inner.deep").origin is Origin.NAMESPACE
    assert search.locate("space.inner.deep.leaf") == folder / "space/inner/deep/leaf.py"


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
