"""The digest of a module's AST."""

import ast
import warnings

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pteforge.tasks.keys.code import ast_digest

NAMES = st.sampled_from(["alpha", "beta", "gamma", "x"])
CONSTANTS = st.one_of(
    st.integers(0, 9),
    st.floats(0, 9),
    st.booleans(),
    st.none(),
    st.text("ab'é# ", max_size=3),
    st.binary(max_size=2),
)
OPERATORS = st.sampled_from(["+", "-", "*", "/", "//", "%", "@", "<<", "and", "or", "==", "<", "is not", "in"])


@st.composite
def expressions(draw, depth=2):
    """Text of an expression on one line."""
    kind = draw(st.integers(0, 5 if depth else 1))
    if kind == 0:
        return draw(NAMES)
    if kind == 1:
        return repr(draw(CONSTANTS))
    first, second = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    if kind == 2:
        return f"({first} {draw(OPERATORS)} {second})"
    if kind == 3:
        return f"{draw(NAMES)}({first}, {draw(NAMES)}={second})"
    if kind == 4:
        return f"[{first} for {draw(NAMES)} in {draw(NAMES)} if {second}]"
    return f"(lambda {draw(NAMES)}: ({first}, {second}))"


@st.composite
def blocks(draw, depth=2):
    """Lines of a suite of statements; none of them is a string alone."""
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        value = draw(expressions())
        name = draw(NAMES)
        if not depth or draw(st.booleans()):
            lines.append(draw(st.sampled_from([f"{name} = {value}", f"{name}: {value} = 0", f"{name} += {value}"])))
            continue
        head = draw(
            st.sampled_from(
                [f"def {name}(y={value}):", f"class {name}:", f"if {value}:", f"while {value}:", f"async def {name}():"]
            )
        )
        lines += [head, *("    " + line for line in draw(blocks(depth=depth - 1)))]
    return lines


@st.composite
def disguised(draw, lines):
    """The same lines with comments, blank lines, docstrings and trailing blanks put in."""
    written = []
    comment = st.text("abc é#'\"", max_size=8)
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        between = st.sampled_from(["", "   ", f"{indent}# {draw(comment)}", f"# {draw(comment)}"])
        written.extend(draw(st.lists(between, max_size=2)))
        written.append(line + draw(st.sampled_from(["", "  ", f"  # {draw(comment)}"])))
        if line.endswith(":") and line.lstrip().startswith(("def", "class", "async")) and draw(st.booleans()):
            text = draw(st.text("abc é#\n", max_size=12))
            written.append(f'{indent}    """{text}"""')
    if draw(st.booleans()):
        written.insert(0, '"""What the module is."""')
    return "\n".join(written) + draw(st.sampled_from(["", "\n", "\n\n# end"]))


@given(st.data())
def test_comments_layout_and_docstrings_do_not_count(data):
    """Whatever comments, blank lines and docstrings are put into a source, its digest stays."""
    lines = data.draw(blocks())
    assert ast_digest(data.draw(disguised(lines)), "a.py") == ast_digest("\n".join(lines), "b.py")


@given(blocks(), blocks())
def test_different_code_has_different_digests(one, other):
    """Two sources have one digest only if Python parses them to the same tree."""
    first, second = "\n".join(one), "\n".join(other)
    same_tree = ast.dump(ast.parse(first)) == ast.dump(ast.parse(second))
    assert (ast_digest(first, "m") == ast_digest(second, "m")) == same_tree


@given(st.data())
def test_one_changed_constant_or_operator_counts(data):
    """Changing a single constant, operator or name anywhere changes the digest."""
    source = "\n".join(data.draw(blocks()))
    tree = ast.parse(source)
    places = [node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.BinOp | ast.Name | ast.Compare)]
    assume(places)
    place = data.draw(st.sampled_from(places))
    match place:
        case ast.Constant(value=value):
            place.value = data.draw(CONSTANTS.filter(lambda other: repr(other) != repr(value)))
        case ast.Name(id=name):
            place.id = data.draw(NAMES.filter(lambda other: other != name))
        case ast.BinOp(op=op):
            place.op = ast.Pow() if not isinstance(op, ast.Pow) else ast.Add()
        case ast.Compare(ops=[op]):
            place.ops = [ast.GtE() if not isinstance(op, ast.GtE) else ast.Eq()]
    assert ast_digest(ast.unparse(tree), "m") != ast_digest(source, "m")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = 0.0", "x = -0.0"),
        ("x = 'a'", "x = b'a'"),
        ("x = 'None'", "x = None"),
        ("x = 1e400", "x = 1e300"),
        ("x = 1j", "x = 1"),
        ("x = ...", "x = None"),
        ("x: int = 1", "x: float = 1"),
        ("x: int", "(x): int"),
        ("def f(a, b=1): return a", "def f(a, *, b=1): return a"),
        ("def f(a): return a", "async def f(a): return a"),
        ("def f(a): return a", "@g\ndef f(a): return a"),
        ("def f(a) -> int: return a", "def f(a): return a"),
        ("f(a)", "f(a=a)"),
        ("f(*a)", "f(**a)"),
        ("f(a, b)", "f(b, a)"),
        ("x = {**a, 1: 2}", "x = {1: 2, **a}"),
        ("from . import a", "from .. import a"),
        ("from .a import b", "from .a import b as c"),
        ("import a.b", "from a import b"),
        ("f'{x!r}'", "f'{x!s}'"),
        ("f'{x:>3}'", "f'{x:<3}'"),
        ("if a: x = 1\nelse: x = 2", "if a: x = 2\nelse: x = 1"),
        ("try: f()\nfinally: g()", "try: f()\nexcept E: g()"),
        ("for a in b: f(a)\nelse: g()", "for a in b: f(a)\ng()"),
        ("match a:\n case [b, *c]: f(b)", "match a:\n case [b, c]: f(b)"),
        ("match a:\n case {'k': b, **c}: f(b)", "match a:\n case {'k': b}: f(b)"),
        ("match a:\n case C(b=1): f()", "match a:\n case C(c=1): f()"),
        ("def f():\n global a\n a = 1", "def f():\n nonlocal_ = 1\n a = 1"),
        ("def f():\n yield a", "def f():\n return a"),
        ("del a", "a"),
        ("x = [a for a in b]", "x = (a for a in b)"),
        ("x = a[1:2]", "x = a[1:2:1]"),
        ("x = a < b < c", "x = a < b and b < c"),
        ("x = (a, b)", "x = [a, b]"),
        ("x = 'a'\n", "x = f('a')\n"),
    ],
)
def test_real_changes_count(one, other):
    """A change of meaning, however small it looks in the tree, changes the digest."""
    assert ast_digest(one, "m") != ast_digest(other, "m")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = (1 + 2)", "x = 1 + \\\n  2"),
        ("x = 'a' 'b'", 'x = """ab"""'),
        ("x = u'a'", "x = 'a'"),
        ("x = 1_000", "x = 0x3e8"),
        ("f(a,)", "f(\n    a\n)"),
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


def test_deep_expressions_are_no_obstacle():
    """A sum of two thousand terms, which nests as deep, has a digest."""
    terms = " + ".join(f"a{number}" for number in range(2000))
    assert ast_digest(f"x = {terms}", "m") != ast_digest(f"x = {terms} + b", "m")


def test_doubtful_escapes_are_no_obstacle():
    """A source that Python warns about has its digest also where warnings are errors."""
    source = r"x = '\d'"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = ast_digest(source, "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ast_digest(source, "m") == expected


def test_source_that_is_not_python_is_refused():
    """A syntax error surfaces as one, with its place."""
    with pytest.raises(SyntaxError) as caught:
        ast_digest("x = 1\ny = (", "model.py")
    assert (caught.value.filename, caught.value.lineno) == ("model.py", 2)


def test_digest_does_not_depend_on_the_process(run_python):
    """Hash seeds do not enter: keys must be equal in every process."""
    program = (
        "import json; from pteforge.tasks.keys.code import ast_digest; "
        "print(json.dumps(ast_digest('def f(a, *, b: int = {1, 2}): return {**a}', 'm')))"
    )
    assert run_python(program, PYTHONHASHSEED="1") == run_python(program, PYTHONHASHSEED="2")
