"""Checking a builder and its arguments without importing it."""

import sys
from pathlib import Path

import pteforge
import pytest
import yaml
from pteforge.configs import load_zoo
from pteforge.errors import SourceError
from pteforge.tasks.engine.keys.builder import find_builder, find_signature
from pteforge.tasks.engine.keys.search import ModuleSearch

ZOOS = Path(pteforge.__file__).parent / "examples/zoo"
STARTER_ZOO = load_zoo(ZOOS / "starter.yaml").zoo


def problem_of(folder, builder):
    with pytest.raises(SourceError) as caught:
        find_builder(builder, ModuleSearch((folder,)))
    return str(caught.value)


@pytest.mark.parametrize("builder", [model.source.builder for model in STARTER_ZOO.models.values()])
def test_builders_of_the_starter_zoo_are_found(builder):
    """Each has a file, in executorch's wheel or next to the zoo, which names it."""
    path, (module, _, qualname) = find_builder(builder, ModuleSearch((ZOOS,))), builder.partition(":")
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


def test_packages_of_an_environment_in_the_folder():
    """A virtual environment in the folder of the zoo is not the user's code: builders of its packages are found."""
    assert find_builder("yaml:load", ModuleSearch((Path(sys.prefix),))) == Path(yaml.__file__)


FORMS = [
    "def build(): ...",
    "def build(a, b=1): ...",
    "def build(a, /, b): ...",
    "def build(a=1, /, b=2): ...",
    "def build(a, /, **more): ...",
    "def build(*args, a): ...",
    "def build(*, a, b=None): ...",
    "def build(a, b=1, *rest, c, **more): ...",
    "class build: ...",
    "class build(object):\n    def __init__(self, a, b=1): ...",
    "class Base: ...\nclass build(Base):\n    def __init__(self, /, a): ...",
]
CALLS = [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}]


@pytest.mark.parametrize("given", [0, 1])
@pytest.mark.parametrize("source", FORMS)
def test_as_python_binds(write_tree, source, given):
    """A call is refused exactly where Python would refuse it."""
    signature = find_signature("model:build", ModuleSearch((write_tree({"model.py": source}),)))
    module = {}
    exec(source, module)  # noqa: S102 - a text of ours
    for kwargs in CALLS:
        try:
            module["build"](*range(given), **kwargs)  # `inspect.Signature.bind` is wrong in Python 3.13.0
            accepted = True
        except TypeError:
            accepted = False
        if given > len(signature.positional):
            continue  # the builder is no function of that kind: left to the worker
        assert (not list(signature.problems("model:build", kwargs, given))) == accepted, (source, kwargs)


@pytest.mark.parametrize(
    "source",
    [
        *("build = make()", "import build", "@cache\ndef build(a): ...", "from a import *\ndef build(): ..."),
        *("def build(a): ...\ndef build(b): ...", "if a:\n    def build(): ...", "build = lambda a: a"),
        *("class build(Base): ...", "class build(metaclass=M): ...", "@dataclass\nclass build:\n    a: int"),
        *("class build:\n    __init__ = make()", "class build:\n    def __new__(cls, a): ...", "def build(:"),
        *("globals()['build'] = 1\ndef build(): ...", "from gone import build", "from .. import build"),
    ],
)
def test_what_the_source_does_not_show(write_tree, source):
    """Where the source leaves doubt, nothing is claimed."""
    assert find_signature("model:build", ModuleSearch((write_tree({"model.py": source}),))) is None


def test_names_that_come_from_elsewhere(write_tree):
    """A name that a package imports is followed to its function, by whatever name, and nothing is imported."""
    folder = write_tree(
        {
            "pkg/__init__.py": "from .nets import make as build, Net, turn",
            "pkg/nets.py": "from other.deep import make\nfrom .turning import turn\nclass Net:\n"
            "    @classmethod\n    def small(cls, a): ...\n    @staticmethod\n    def big(a, b): ...\n"
            "    def method(self, a): ...\n",
            "pkg/turning.py": "from .nets import turn",
            "other/deep.py": "raise SystemExit\ndef make(width, depth=1): ...",
        }
    )
    finder = ModuleSearch((folder,))
    assert find_signature("pkg:build", finder).positional == ("width", "depth")
    assert find_signature("pkg:Net.small", finder).positional == ("a",)
    assert find_signature("pkg:Net.big", finder).positional == ("a", "b")
    assert find_signature("pkg:Net.method", finder) is None
    assert find_signature("pkg:turn", finder) is None  # a circle
    assert "pkg" not in sys.modules


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        (
            {"widht": 1},
            [
                ("widht", "m:b takes no argument 'widht'; did you mean 'width'?"),
                (None, "m:b needs the argument 'width'"),
            ],
        ),
        ({"width": 1, "zz": 2}, [("zz", "m:b takes no argument 'zz'; it takes width, depth, seed")]),
    ],
)
def test_messages(write_tree, kwargs, said):
    """A problem has the argument, and what was probably meant."""
    folder = write_tree({"m.py": "def b(width, depth=1, *, seed=0): ..."})
    assert list(find_signature("m:b", ModuleSearch((folder,))).problems("m:b", kwargs)) == said
