"""Digests of Python code: of one module's AST, and of a module with everything it imports."""

import ast
import gc
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pteforge.tasks.engine.keys.code import _is_idle, file_digest, module_closure, parse_module, tree_digest
from pteforge.tasks.engine.keys.search import ModuleSearch

SOURCES = {
    f"{name}.py": Path(ast.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    for name in ["argparse", "ast", "bisect", "copy", "dataclasses", "heapq", "inspect", "textwrap", "typing"]
}
"""Modules of the standard library."""


def ast_digest(source, filename):
    return tree_digest(parse_module(source, filename))


@pytest.mark.parametrize("name", SOURCES)
def test_comments_and_layout_do_not_count(name):
    """A module without its comments and its layout has the digest that it had."""
    source = SOURCES[name]
    assert ast_digest(ast.unparse(ast.parse(source)), "a.py") == ast_digest(source, "b.py")


def test_different_code_has_different_digests():
    """Among all the statements of some modules, two have one digest only if Python parses them to the same tree."""
    digests: dict[str, str] = {}
    for source in SOURCES.values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.stmt) and not hasattr(node, "body") and not _is_idle(node):
                digest = ast_digest(ast.unparse(node), "m")
                assert digests.setdefault(ast.dump(node), digest) == digest
    assert len(digests) > 3000
    assert len(set(digests.values())) == len(digests)


@settings(max_examples=50)
@given(st.sampled_from(["bisect.py", "copy.py"]), st.randoms(use_true_random=False))
def test_one_changed_constant_or_operator_counts(name, random):
    """Changing a single constant, operator or name anywhere changes the digest."""
    tree = ast.parse(SOURCES[name])
    before = ast_digest(ast.unparse(tree), "m")
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    kinds = (ast.Constant, ast.BinOp, ast.Name, ast.Compare)
    places = [node for node in ast.walk(tree) if isinstance(node, kinds) and id(node) not in docstrings]
    match place := random.choice(places):
        case ast.Constant(value=value):
            place.value = "another" if value != "another" else None
        case ast.Name(id=name):
            place.id = f"{name}_"
        case ast.BinOp(op=op):
            place.op = ast.Pow() if not isinstance(op, ast.Pow) else ast.Add()
        case ast.Compare(ops=[op, *_]):
            place.ops[0] = ast.GtE() if not isinstance(op, ast.GtE) else ast.Eq()
    assert ast_digest(ast.unparse(tree), "m") != before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("x = 1", "x = 1.0"), ("x = 1", "x = True"), ("x = 0.0", "x = -0.0"), ("x = 1e400", "x = 1e300")),
        *(("x = 'a'", "x = b'a'"), ("x = 'None'", "x = None"), ("x: int", "(x): int")),
        ("def f(a, b=1): return a", "def f(a, *, b=1): return a"),
        ("def f(a): return a", "async def f(a): return a"),
        ("def f(a): return a", "@g\ndef f(a): return a"),
        ("def f(a) -> int: return a", "def f(a): return a"),
        ("x = {**a, 1: 2}", "x = {1: 2, **a}"),
        ("from . import a", "from .. import a"),
        ("f'{x:>3}'", "f'{x:<3}'"),
        ("if a: x = 1\nelse: x = 2", "if a: x = 2\nelse: x = 1"),
        ("try: f()\nfinally: g()", "try: f()\nexcept E: g()"),
        ("for a in b: f(a)\nelse: g()", "for a in b: f(a)\ng()"),
        ("match a:\n case [b, *c]: f(b)", "match a:\n case [b, c]: f(b)"),
        ("match a:\n case {'k': b, **c}: f(b)", "match a:\n case {'k': b}: f(b)"),
        ("match a:\n case C(b=1): f()", "match a:\n case C(c=1): f()"),
        ("def f():\n global a\n a = 1", "def f():\n nonlocal_ = 1\n a = 1"),
        ("def f():\n yield a", "def f():\n return a"),
    ],
)
def test_real_changes_count(one, other):
    """Values and statements that look alike in the tree have different digests."""
    assert ast_digest(one, "m") != ast_digest(other, "m")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("x = (1 + 2)", "x = 1 + \\\n  2"), ("x = 1_000", "x = 0x3e8"), ("f(a,)", "f(\n    a\n)")),
        *(("x = 'a' 'b'", 'x = """ab"""'), ("x = u'a'", "x = 'a'")),
        ("class E(Exception): pass", 'class E(Exception):\n    """Why."""'),
        ("x = 1", 'x = 1\n"""What x is."""'),
        ("def f():\n  return 1", 'def f():\n    "Doc."\n    return 1'),
        ("# -*- coding: utf-8 -*-\nx = 1", "x = 1"),
        ("x = 1", b"\xef\xbb\xbfx = 1"),
        ("x = 'é'", "# -*- coding: latin-1 -*-\nx = 'é'".encode("latin-1")),
    ],
)
def test_ways_of_writing_do_not_count(one, other):
    """What is written differently but means the same has one digest."""
    assert ast_digest(one, "m") == ast_digest(other, "m")


def test_unusual_sources():
    """A sum of two thousand terms nests as deep; Python warns about some escapes; a syntax error has its place."""
    terms = " + ".join(f"a{number}" for number in range(2000))
    assert ast_digest(f"x = {terms}", "m") != ast_digest(f"x = {terms} + b", "m")
    source = r"x = '\d'"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = ast_digest(source, "m")
        warnings.simplefilter("error")
        assert ast_digest(source, "m") == expected
    with pytest.raises(SyntaxError) as caught:
        ast_digest("x = 1\ny = (", "model.py")
    assert (caught.value.filename, caught.value.lineno) == ("model.py", 2)


def test_many_threads_may_parse():
    """CPython 3.11's parser fails where another thread parses meanwhile, as a garbage collection lets it."""
    source = "\n".join(f"x{number} = f(a, [b, {{c: d + {number}}}])" for number in range(200))

    def let_others_run(*_event):
        time.sleep(0)

    gc.callbacks.append(let_others_run)
    threshold = gc.get_threshold()
    gc.set_threshold(100)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert len(set(threads.map(lambda _: ast_digest(source, "m"), range(24)))) == 1
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(let_others_run)


def test_code_without_our_lock_may_parse():
    """It does not matter that others parse meanwhile: Prefect does, and so does whoever formats a traceback.

    From CPython 3.12 on, collections wait until the parser has returned.
    """
    source = "\n".join(f"x{number} = f(a, [b, {{c: d + {number}}}])" for number in range(200))
    expected, parsed = ast_digest(source, "m"), []

    def parse(*_event):
        if len(parsed) < 5:  # collections, all of them of the first attempt
            parsed.append(ast.parse("x = 1"))

    threshold = gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(100)
    try:
        assert ast_digest(source, "m") == expected
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(parse)
    assert len(parsed) == 5 or sys.version_info >= (3, 12)


def closure_of(folder, module="model", watched=()):
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
        ("from t import TYPE_CHECKING\nif not TYPE_CHECKING:\n    import helper\nelse:\n    import other", {"helper"}),
        ("import os, json, importlib.util, collections.abc", set()),
        ("from . import helper", set()),
        ("x = 'import helper'", set()),
    ],
)
def test_import_forms(write_tree, source, expected):
    """Each way to import local code brings the modules that Python would load for it."""
    folder = write_tree(
        {
            **dict.fromkeys(("helper.py", "other.py", "pkg/sub.py", "pkg/deep/__init__.py"), ""),
            "model.py": source,
            "pkg/__init__.py": "name_in_init = 1",
            "pkg/user.py": "from .deep.leaf import a\nfrom . import sub",
            "pkg/deep/leaf.py": "from ... import too_far_up\nfrom .. import name_in_init",
        }
    )
    assert set(closure_of(folder).modules) == expected | {"model"}


def test_namespace_packages(write_tree, tmp_path):
    """Packages without ``__init__`` are followed, nested and spread over folders; they have no digest of their own."""
    write_tree({"one/model.py": "import space.a.leaf\nfrom space import b", "one/space/a/leaf.py": "import helper"})
    write_tree({"two/space/b.py": "", "two/helper.py": ""})
    found = module_closure("model", ModuleSearch((tmp_path / "one", tmp_path / "two")))
    assert set(found.modules) == {"model", "space.a.leaf", "space.b", "helper"}


@pytest.mark.parametrize(
    "files",
    [
        # Importing a module runs the ``__init__`` of its packages first, so these count, with what they import.
        {"zoo.model": "", "zoo.__init__": "from . import setup", "zoo.setup": ""},
        # Relative imports of a package are relative to the package itself.
        {"zoo.__init__": "from .a import x", "zoo.a": "from .b import y", "zoo.b": ""},
        {"model": "import b", "b": "import c", "c": "import model, b, c"},
    ],
    ids=["parents", "relative", "cycle"],
)
def test_closures_of_several_files(write_tree, files):
    """The closure of the first module has all the others, once each."""
    folder = write_tree({f"{name.replace('.', '/')}.py": source for name, source in files.items()})
    first, *others = (name.removesuffix(".__init__") for name in files)
    assert set(closure_of(folder, first).modules) == {first, *others}


def test_what_is_outside(write_tree):
    """Installed code counts by top-level name, Python's own not at all, and missing modules are listed."""
    folder = write_tree(
        {
            "model.py": "import torch.nn.functional as F, os.path, nowhere.sub\nfrom yaml import x\n"
            "import pytest, pkg.no\nfrom pteforge.configs.model import ModelDefinition",
            "plugin.py": "import helper, yaml",
            **dict.fromkeys(("pkg/__init__.py", "helper.py"), ""),
        }
    )
    found = closure_of(folder)
    assert found.distributions == ("pteforge", "pytest", "torch", "yaml")
    assert found.unresolved == ("nowhere.sub", "pkg.no")
    assert set(found.modules) == {"model", "pkg"}
    watching = closure_of(folder, "helper", watched=("plugin", "gone", "numpy"))
    assert set(watching.modules) == {"plugin", "helper"}
    assert watching.distributions == ("numpy", "yaml")


def test_code_that_cannot_be_read_counts_as_bytes(write_tree):
    """An imported file that does not parse, or is compiled, still changes the closure when it changes."""
    folder = write_tree({"model.py": "try:\n    import old\nexcept SyntaxError: pass\nimport native"})
    digests = set()
    for old, native in (("print 1", b"\x7fELF1"), ("print 2", b"\x7fELF1"), ("print 2", b"\x7fELF2")):
        write_tree({"old.py": old, "native.so": native})
        found = closure_of(folder)
        assert set(found.modules) == {"model", "old", "native"}
        digests.add(tuple(found.modules.values()))
        assert file_digest(folder / "old.py") == found.modules["old"]
    assert len(digests) == 3
