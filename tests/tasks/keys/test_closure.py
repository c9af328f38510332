"""The code that a module brings with it, found by reading it."""

import pytest
from pteforge.tasks.keys.code import file_digest, module_closure
from pteforge.tasks.keys.search import ModuleSearch


def closure_of(folder, module="model", watched=()):
    """Closure in a new search, as a new run would see it."""
    return module_closure(module, ModuleSearch((folder,)), watched)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import helper", {"helper"}),
        ("import helper as h, other", {"helper", "other"}),
        ("import pkg.sub", {"pkg", "pkg.sub"}),
        ("import pkg.deep.leaf", {"pkg", "pkg.deep", "pkg.deep.leaf"}),
        ("from helper import anything", {"helper"}),
        ("from pkg import sub", {"pkg", "pkg.sub"}),
        ("from pkg import name_in_init", {"pkg"}),
        ("from pkg.sub import anything as b", {"pkg", "pkg.sub"}),
        ("from pkg import *", {"pkg"}),
        ("from pkg import user", {"pkg", "pkg.user", "pkg.sub", "pkg.deep", "pkg.deep.leaf"}),
        ("def f():\n    import helper", {"helper"}),
        ("class A:\n    def f(self):\n        from pkg import sub", {"pkg", "pkg.sub"}),
        ("try:\n    import nowhere\nexcept ImportError:\n    import helper", {"helper"}),
        ("match 1:\n    case 1:\n        import helper", {"helper"}),
        ("with f():\n    import helper\nfor a in b:\n    import other", {"helper", "other"}),
        ("if a:\n    b\nelif c:\n    import helper\nelse:\n    import other", {"helper", "other"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import helper\nelse:\n    import other", {"other"}),
        ("import typing\nif typing.TYPE_CHECKING:\n    import helper", set()),
        (
            "from typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    import helper\nelse:\n    import other",
            {"helper"},
        ),
        ("import os, json, importlib.util, collections.abc", set()),
        ("from . import helper", set()),
        ("x = 'import helper'", set()),
    ],
)
def test_import_forms(write_tree, source, expected):
    """Each way to import local code brings the modules that Python would load for it."""
    folder = write_tree(
        {
            "model.py": source,
            "helper.py": "",
            "other.py": "",
            "pkg/__init__.py": "name_in_init = 1",
            "pkg/sub.py": "",
            "pkg/user.py": "from .deep.leaf import a\nfrom . import sub",
            "pkg/deep/__init__.py": "",
            "pkg/deep/leaf.py": "from ... import too_far_up\nfrom .. import name_in_init",
        }
    )
    assert set(closure_of(folder).modules) == expected | {"model"}


def test_builder_within_a_package_brings_its_parents(write_tree):
    """Importing a module runs its packages' ``__init__`` first, so these count, with what they import."""
    folder = write_tree({"zoo/__init__.py": "from . import setup", "zoo/setup.py": "", "zoo/model.py": ""})
    assert set(closure_of(folder, "zoo.model").modules) == {"zoo", "zoo.setup", "zoo.model"}


def test_relative_imports_of_a_package_are_relative_to_itself(write_tree):
    """``from .a import x`` in ``zoo/__init__.py`` and ``from .b import y`` in ``zoo/a.py`` mean one package."""
    folder = write_tree({"zoo/__init__.py": "from .a import x", "zoo/a.py": "from .b import y", "zoo/b.py": ""})
    assert set(closure_of(folder, "zoo").modules) == {"zoo", "zoo.a", "zoo.b"}


def test_cycles_end(write_tree):
    """Modules that import each other are each counted once."""
    folder = write_tree({"model.py": "import b", "b.py": "import c", "c.py": "import model, b, c"})
    assert set(closure_of(folder).modules) == {"model", "b", "c"}


def test_namespace_packages(write_tree, tmp_path):
    """Packages without ``__init__`` are followed, nested and spread over folders; they have no digest of their own."""
    write_tree({"one/model.py": "import space.a.leaf\nfrom space import b", "one/space/a/leaf.py": "import helper"})
    write_tree({"two/space/b.py": "", "two/helper.py": ""})
    found = module_closure("model", ModuleSearch((tmp_path / "one", tmp_path / "two")))
    assert set(found.modules) == {"model", "space.a.leaf", "space.b", "helper"}


def test_what_is_outside(write_tree):
    """Installed code counts by top-level name, Python's own not at all, and what is missing is said."""
    folder = write_tree(
        {
            "model.py": "import torch.nn.functional as F, os.path, nowhere.sub\nfrom yaml import x"
            "\nimport pytest, pkg.no",
            "pkg/__init__.py": "",
        }
    )
    found = closure_of(folder)
    assert found.distributions == ("pytest", "torch", "yaml")
    assert found.unresolved == ("nowhere.sub", "pkg.no")
    assert set(found.modules) == {"model", "pkg"}


def test_pteforge_is_a_distribution_to_user_code(write_tree):
    """A builder imports ModelDefinition; that must not tie its key to pteforge's sources."""
    folder = write_tree({"model.py": "from pteforge.configs.definition import ModelDefinition"})
    found = closure_of(folder)
    assert (set(found.modules), found.distributions) == ({"model"}, ("pteforge",))


def test_builder_in_a_distribution_has_no_local_code():
    """A model of the executorch wheel is described by the wheel's version alone."""
    found = module_closure("executorch.examples.models.mlperf_tiny.resnet8", ModuleSearch())
    assert (dict(found.modules), found.distributions) == ({}, ("executorch",))


def test_editing_an_imported_helper_changes_its_digest_only(write_tree):
    """The closure says which module was edited; a comment is no edit."""
    folder = write_tree({"model.py": "import helper", "helper.py": "from pkg.sub import x"})
    write_tree({"pkg/__init__.py": "", "pkg/sub.py": "x = 1"})
    before = closure_of(folder)
    write_tree({"pkg/sub.py": "x = 1  # one"})
    assert closure_of(folder) == before
    write_tree({"pkg/sub.py": "x = 2"})
    after = closure_of(folder)
    assert {name for name in after.modules if after.modules[name] != before.modules[name]} == {"pkg.sub"}


def test_moving_the_folder_changes_nothing(write_tree, tmp_path):
    """No path enters a closure."""
    files = {"model.py": "import pkg.sub", "pkg/__init__.py": "", "pkg/sub.py": "x = 1"}
    one, other = write_tree(files, tmp_path / "one"), write_tree(files, tmp_path / "elsewhere" / "two")
    assert closure_of(one) == closure_of(other)


def test_moving_the_file_changes_the_module_name_only(write_tree):
    """The same file under another name has the same digest."""
    folder = write_tree({"model.py": "x = 1", "pkg/moved.py": "x = 1"})
    assert list(closure_of(folder).modules.values()) == list(closure_of(folder, "pkg.moved").modules.values())


def test_code_that_cannot_be_read_counts_as_bytes(write_tree):
    """An imported file that does not parse, or is compiled, still changes the closure when it changes."""
    folder = write_tree({"model.py": "try:\n    import old\nexcept SyntaxError: pass\nimport native"})
    digests = set()
    for old, native in (("print 1", b"\x7fELF1"), ("print 2", b"\x7fELF1"), ("print 2", b"\x7fELF2")):
        write_tree({"old.py": old, "native.so": native})
        found = closure_of(folder)
        assert set(found.modules) == {"model", "old", "native"}
        digests.add(tuple(found.modules.values()))
    assert len(digests) == 3


def test_watched_modules_join_with_their_own_imports(write_tree):
    """What earlier runs saw loaded counts like an import; a watched module that is gone is left out."""
    folder = write_tree({"model.py": "", "plugin.py": "import helper, yaml", "helper.py": ""})
    found = closure_of(folder, watched=("plugin", "gone", "numpy"))
    assert set(found.modules) == {"model", "plugin", "helper"}
    assert found.distributions == ("numpy", "yaml")


def test_file_digest_is_the_module_digest(write_tree):
    """A file read by its path has the digest that it has as a module."""
    folder = write_tree({"model.py": '"""Doc."""\nx = 1'})
    assert file_digest(folder / "model.py") == closure_of(folder).modules["model"]
