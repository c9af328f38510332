"""Checking a builder without importing it."""

from pathlib import Path

import pteforge
import pytest
from pteforge.configs import load_zoo
from pteforge.errors import SourceError
from pteforge.tasks.engine.keys.builder import find_builder
from pteforge.tasks.engine.keys.search import ModuleSearch

STARTER_ZOO = load_zoo(Path(pteforge.__file__).parent / "examples/zoo/starter.yaml").zoo


def problem_of(folder, builder):
    with pytest.raises(SourceError) as caught:
        find_builder(builder, ModuleSearch((folder,)))
    return str(caught.value)


@pytest.mark.parametrize("builder", [model.source.builder for model in STARTER_ZOO.models.values()])
def test_builders_of_the_executorch_wheel_are_found(builder):
    """Each has a file, which names it."""
    path, (module, _, qualname) = find_builder(builder, ModuleSearch()), builder.partition(":")
    assert module.endswith(path.stem)
    assert f" {qualname}" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "source",
    [
        *("def build(): ...", "async def build(): ...", "class build: ..."),
        *("build = 1", "a, (build, *c) = f()", "build: object = f()", "build += 1"),
        *("import build", "import build.sub", "import a as build", "from a import build", "from a import b as build"),
        *("if a:\n    def build(): ...", "try:\n    from a import build\nexcept ImportError:\n    pass"),
        *("for build in a: pass", "with a as build: pass", "if (build := f()): pass"),
        *(f"match a:\n    case {pattern}: pass" for pattern in ("[build]", "[*build]", "{**build}")),
        # These may bind it: nobody knows without running them.
        *("from a import *", "def __getattr__(name): ...", "globals()['build'] = 1", "exec('build = 1')"),
        "def f():\n    global build\n    build = 1",
    ],
)
def test_every_way_to_bind_a_name_is_seen(write_tree, source):
    """A name that importing the module binds, or may bind, is accepted."""
    folder = write_tree({"model.py": source, "native.so": b"\x7fELF"})
    assert find_builder("model:build", ModuleSearch((folder,))) == folder / "model.py"
    assert find_builder("native:build", ModuleSearch((folder,))) == folder / "native.so"  # which cannot be read


@pytest.mark.parametrize(
    "source",
    [
        *("def f():\n    build = 1", "class A:\n    def build(self): ...", "x = lambda build: build"),
        *("import a.build", "from build import a", "from build import a as b"),
        *("", "build: int", "print(build)", "'build'"),
    ],
)
def test_names_that_are_not_bound_are_refused(write_tree, source):
    """A name that only occurs inside, or is only used, is not there."""
    folder = write_tree({"model.py": source})
    assert f"{folder}/model.py binds no 'build' at its top level" in problem_of(folder, "model:build")


@pytest.mark.parametrize(
    "qualname", ["A.make", "A.also", "A.Inner.make", "B.anything", "C.anything", "D.x", "f.x", "E.x"]
)
def test_methods_are_found(write_tree, qualname):
    """A class's own names are accepted, and whatever a base, metaclass, decorator or assignment may add."""
    folder = write_tree(
        {
            "model.py": "class A(object):\n    def make(): ...\n    also = 1\n    class Inner: ...\n"
            "class B(A): ...\nclass C(metaclass=M): ...\n@f\nclass D: ...\ndef f(): ...\nE = f()"
        }
    )
    assert find_builder(f"model:{qualname}", ModuleSearch((folder,))) == folder / "model.py"


@pytest.mark.parametrize("builder", ["model", "model:", ":build", "model:a b", "model.:build", "a:b:c", "model:1"])
def test_names_of_another_form_are_refused(write_tree, builder):
    """The message says how a builder is written."""
    assert "is not written as package.module:name" in problem_of(write_tree({"model.py": ""}), builder)


PACKAGE = {"zoo/__init__.py": "", "zoo/inner/resnet.py": "", "zoo/model.py": "def build_resnet(): ...\nother = 1"}


@pytest.mark.parametrize(
    ("files", "builder", "expected"),
    [
        ({"model.py": "\nclass A:\n    def create(self): ..."}, "model:A.craete",
         "/model.py:2: class A has no 'craete'; did you mean 'create'?"),
        (PACKAGE, "zoo.model:build_resent", "/zoo/model.py binds no 'build_resent' at its top level; did you mean 'b"),
        ({"resnet.py": ""}, "resnett:build", "there is no module 'resnett' in this Python's own folders nor in "),
        ({"resnet.py": ""}, "resnett:build", "; did you mean 'resnet'?"),
        (PACKAGE, "zoo.inner.rsenet.deeper:build", "package zoo.inner has no module 'rsenet' in "),
        (PACKAGE, "zoo.inner.rsenet.deeper:build", "/zoo/inner; did you mean 'resnet'?"),
        (PACKAGE, "zoo.model.deeper:build", "model.py) is a module, not a package: it holds no 'deeper'"),
        ({}, "sys:exit", "part of Python"),
        ({"space/a.py": ""}, "space:build", "without __init__.py"),
        ({"model.py": "x = 1\ndef build(:\n"}, "model:build", "/model.py:2:11: invalid syntax"),
        ({"model.py": b"x = 1\0"}, "model:build", "/model.py"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(write_tree, files, builder, expected):
    """The message names the builder, the place of the mistake and the closest name that exists."""
    problem = problem_of(write_tree(files), builder)
    assert problem.startswith(f"builder {builder!r}: ")
    assert expected in problem


@pytest.mark.parametrize(
    ("name", "hides"),
    [("json", "Python's module json"), ("torch", "the package torch"), ("sympy", "the package sympy")],
)
def test_files_that_are_never_imported_are_refused(write_tree, name, hides):
    """A file named like a module that every worker has imported before is not what a worker would run."""
    folder = write_tree({f"{name}.py": "def build(): ..."})
    said = problem_of(folder, f"{name}:build")
    assert said.endswith(f"{name}.py is never imported, since {hides} has the same name; rename it")
