"""Checking a builder without importing it."""

import pytest
from pteforge.errors import SourceError
from pteforge.tasks.keys.builder import find_builder
from pteforge.tasks.keys.search import ModuleSearch

STARTER_ZOO = [
    "executorch.examples.models.mlperf_tiny.deep_autoencoder:DeepAutoEncoderModel",
    "executorch.examples.models.mlperf_tiny.ds_cnn:DSCNNKWSModel",
    "executorch.examples.models.mlperf_tiny.mobilenet_v1_025:MobileNetV1025Model",
    "executorch.examples.models.mlperf_tiny.resnet8:ResNet8Model",
    "executorch.examples.models.lstm:LSTMModel",
    "executorch.examples.models.toy_model:SdpaModule",
]


def problem_of(folder, builder):
    """The message that refuses a builder."""
    with pytest.raises(SourceError) as caught:
        find_builder(builder, ModuleSearch((folder,)))
    return str(caught.value)


@pytest.mark.parametrize("builder", STARTER_ZOO)
def test_builders_of_the_executorch_wheel_are_found(builder):
    """Each has a file and a line."""
    found = find_builder(builder, ModuleSearch())
    assert found.path.is_file()
    assert f"{found.module}:{found.qualname}" == builder
    assert found.qualname in found.path.read_text(encoding="utf-8").splitlines()[found.line - 1]


@pytest.mark.parametrize(
    "source",
    [
        "def build(): ...",
        "async def build(): ...",
        "class build: ...",
        "build = 1",
        "a, (build, *c) = f()",
        "build: object = f()",
        "build += 1",
        "import build",
        "import build.sub",
        "import a as build",
        "from a import build",
        "from a import b as build",
        "if a:\n    def build(): ...",
        "try:\n    from a import build\nexcept ImportError:\n    pass",
        "for build in a: pass",
        "with a as build: pass",
        "if (build := f()): pass",
        "match a:\n    case [build]: pass",
        "match a:\n    case [*build]: pass",
        "match a:\n    case {**build}: pass",
        "from a import *",
        "def __getattr__(name): ...",
        "globals()['build'] = 1",
        "def f():\n    global build\n    build = 1",
        "exec('build = 1')",
    ],
)
def test_every_way_to_bind_a_name_is_seen(write_tree, source):
    """A name that importing the module binds, or may bind, is accepted."""
    folder = write_tree({"model.py": source})
    assert find_builder("model:build", ModuleSearch((folder,))).path == folder / "model.py"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def f():\n    build = 1",
        "class A:\n    def build(self): ...",
        "x = lambda build: build",
        "build: int",
        "import a.build",
        "from build import a",
        "from build import a as b",
        "print(build)",
        "'build'",
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
    assert find_builder(f"model:{qualname}", ModuleSearch((folder,))).qualname == qualname


def test_missing_method_names_the_class_and_the_closest(write_tree):
    """A method that cannot be there is refused, with the class's place and the nearest name."""
    folder = write_tree({"model.py": "\nclass A:\n    def create(self): ..."})
    problem = problem_of(folder, "model:A.craete")
    assert f"{folder}/model.py:2: class A has no 'craete'; did you mean 'create'?" in problem


def test_misspelt_name_gets_the_closest(write_tree):
    """The message names the builder, the file and the nearest name."""
    folder = write_tree({"zoo/__init__.py": "", "zoo/model.py": "def build_resnet(): ...\nother = 1"})
    problem = problem_of(folder, "zoo.model:build_resent")
    assert problem.startswith("builder 'zoo.model:build_resent': ")
    assert str(folder / "zoo" / "model.py") in problem
    assert problem.endswith("did you mean 'build_resnet'?")


def test_missing_module_says_where_it_was_looked_for(write_tree):
    """Every given folder is named, and a module of nearly that name in one of them."""
    folder = write_tree({"resnet.py": ""})
    problem = problem_of(folder, "resnett:build")
    assert (
        f"there is no module 'resnett' in this Python's own folders nor in {folder}; did you mean 'resnet'?" in problem
    )


def test_missing_submodule_names_its_package(write_tree):
    """Only the missing part of a dotted name is complained about, with what its package holds."""
    folder = write_tree({"zoo/__init__.py": "", "zoo/inner/resnet.py": ""})
    problem = problem_of(folder, "zoo.inner.rsenet.deeper:build")
    assert f"package zoo.inner has no module 'rsenet' in {folder}/zoo/inner; did you mean 'resnet'?" in problem


def test_module_is_no_package(write_tree):
    """A dotted name below a plain module says so."""
    folder = write_tree({"zoo.py": ""})
    assert "zoo.py) is a module, not a package: it holds no 'model'" in problem_of(folder, "zoo.model:build")


@pytest.mark.parametrize(
    ("builder", "reason"), [("sys:exit", "part of Python"), ("space:build", "without __init__.py")]
)
def test_modules_without_a_file_are_refused(write_tree, builder, reason):
    """What has no source file can hold no builder."""
    assert reason in problem_of(write_tree({"space/a.py": ""}), builder)


@pytest.mark.parametrize("builder", ["model", "model:", ":build", "model:a b", "model.:build", "a:b:c", "model:1"])
def test_names_of_another_form_are_refused(write_tree, builder):
    """The message says how a builder is written."""
    assert "is not written as package.module:name" in problem_of(write_tree({"model.py": ""}), builder)


def test_syntax_error_names_its_line(write_tree):
    """A module that does not parse is refused with file, line and Python's reason."""
    folder = write_tree({"model.py": "x = 1\ndef build(:\n"})
    assert f"{folder}/model.py:2:11: invalid syntax" in problem_of(folder, "model:build")


def test_bytes_that_are_no_text_are_refused(write_tree):
    """A file with NUL bytes is refused with its path."""
    folder = write_tree({"model.py": b"x = 1\0"})
    assert str(folder / "model.py") in problem_of(folder, "model:build")


def test_compiled_modules_are_accepted(write_tree):
    """What an extension module binds cannot be read from it."""
    folder = write_tree({"model.so": b"\x7fELF"})
    assert find_builder("model:build", ModuleSearch((folder,))).line is None
