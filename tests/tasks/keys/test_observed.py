"""What a builder loaded that reading its source does not tell."""

import pytest
from pteforge.tasks.keys.code import module_closure
from pteforge.tasks.keys.search import ModuleSearch

OBSERVE = """
import json, sys
from importlib import import_module
from pathlib import Path
from pteforge.tasks.keys.observed import observed_distributions, observed_modules
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
before, path = set(sys.modules), list(sys.path)
import_module("model").build()
print(json.dumps([observed_modules(before, (folder,), path), observed_distributions(before, (folder,))]))
"""


@pytest.fixture
def observe(write_tree, run_python):
    """Runs ``model.build`` of a tree in a process of its own and returns what it was seen to load."""

    def run(files):
        folder = write_tree(files)
        modules, distributions = run_python(OBSERVE, folder)
        return folder, modules, distributions

    return run


def test_module_imported_at_run_time_is_seen(observe, write_tree):
    """What the static closure misses is observed, and once watched, an edit of it changes the closure."""
    folder, modules, _ = observe(
        {
            "model.py": "import importlib, helper\ndef build(): importlib.import_module('plug' + 'ins.one')",
            "helper.py": "",
            "plugins/one.py": "x = 1",
        }
    )
    static = module_closure("model", ModuleSearch((folder,)))
    assert modules == ["helper", "model", "plugins.one"]
    assert set(modules) - set(static.modules) == {"plugins.one"}
    watched = module_closure("model", ModuleSearch((folder,)), ["plugins.one"])
    write_tree({"plugins/one.py": "x = 2"})
    assert module_closure("model", ModuleSearch((folder,))) == static
    assert module_closure("model", ModuleSearch((folder,)), ["plugins.one"]) != watched


def test_static_closure_covers_what_ordinary_imports_load(observe):
    """For code that imports in the usual ways, nothing is left to watch."""
    folder, modules, _ = observe(
        {
            "model.py": "from zoo import nets\nfrom zoo.nets.deep import net\ndef build():\n    import late",
            "zoo/__init__.py": "from .setup import *",
            "zoo/setup.py": "",
            "zoo/nets/__init__.py": "",
            "zoo/nets/deep.py": "from .. import setup\nnet = 1",
            "late.py": "",
        }
    )
    assert set(modules) == set(module_closure("model", ModuleSearch((folder,))).modules)


def test_files_without_a_name_stand_as_paths(observe):
    """A builder that extends ``sys.path``, or loads a file under another name, is still watched."""
    folder, modules, _ = observe(
        {
            "model.py": "import sys, os, importlib.util\n"
            "def build():\n"
            "    here = os.path.dirname(__file__)\n"
            "    sys.path.append(os.path.join(here, 'third_party'))\n"
            "    import vendored\n"
            "    spec = importlib.util.spec_from_file_location('helper', os.path.join(here, 'odd.py'))\n"
            "    sys.modules['helper'] = importlib.util.module_from_spec(spec)\n",
            "helper.py": "",
            "odd.py": "",
            "third_party/vendored.py": "",
        }
    )
    assert modules == [str(folder / "odd.py"), str(folder / "third_party" / "vendored.py"), "model"]


def test_others_code_is_not_local(observe):
    """Neither Python's modules, nor installed ones, nor pteforge's are observed; installed ones apart by their top."""
    _, modules, distributions = observe(
        {"model.py": "import colorsys, pluggy, pteforge.configs.definition, pteforge.artifacts.ref\ndef build(): ..."}
    )
    assert modules == ["model"]
    assert distributions == ["pluggy"]


def test_odd_entries_of_sys_modules_do_no_harm(observe):
    """Anything may stand in ``sys.modules``; lazily loaded modules must not be loaded by being looked at."""
    _, modules, _ = observe(
        {
            "model.py": "import sys, importlib.util\n"
            "class Slots:\n    __slots__ = ()\n"
            "def build():\n"
            "    sys.modules['none'] = None\n"
            "    sys.modules['number'] = 1\n"
            "    sys.modules['slots'] = Slots()\n"
            "    spec = importlib.util.find_spec('lazy')\n"
            "    spec.loader = importlib.util.LazyLoader(spec.loader)\n"
            "    sys.modules['lazy'] = importlib.util.module_from_spec(spec)\n"
            "    spec.loader.exec_module(sys.modules['lazy'])\n",
            "lazy.py": "raise SystemExit('loaded')",
        }
    )
    assert modules == ["lazy", "model"]
