"""Arguments of user code, read from its source, against what Python itself says about the call."""

import inspect
import sys

import pytest
from pteforge.tasks.engine.keys.builder import find_signature
from pteforge.tasks.engine.keys.search import ModuleSearch

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
    known = inspect.signature(module["build"])
    for kwargs in CALLS:
        try:
            known.bind(*range(given), **kwargs)
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
    search = ModuleSearch((folder,))
    assert find_signature("pkg:build", search).positional == ("width", "depth")
    assert find_signature("pkg:Net.small", search).positional == ("a",)
    assert find_signature("pkg:Net.big", search).positional == ("a", "b")
    assert find_signature("pkg:Net.method", search) is None
    assert find_signature("pkg:turn", search) is None  # a circle
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
