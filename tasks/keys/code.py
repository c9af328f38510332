"""Digests of Python code by what it means: of one module, and of a module with all it imports."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ...artifacts.digest import Digest, digest_bytes
from .imports import imported_modules
from .search import FoundModule, ModuleSearch, Origin

PTEFORGE = __name__.partition(".")[0]
"""The top-level package that this code is part of."""


@dataclass(frozen=True, slots=True)
class Closure:
    """The code that a module brings with it.

    Attributes:
        modules: name to digest of each module that was followed, parent packages included.
        distributions: sorted top-level names of what is imported but not followed, the standard library left out.
        unresolved: sorted names of imported modules that are nowhere to be found (often inside ``try:``).
    """

    modules: Mapping[str, Digest]
    distributions: tuple[str, ...]
    unresolved: tuple[str, ...]


def parse_module(source: str | bytes, filename: str) -> ast.Module:
    """AST of a module's source; SyntaxError or ValueError where it is not Python."""
    try:
        return ast.parse(source, filename)
    except SyntaxError:
        # Where warnings are errors, a doubtful escape sequence arrives here too; it is no obstacle to importing.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source, filename)


def ast_digest(source: str | bytes, filename: str) -> Digest:
    """Digest of a module that is the same after editing comments, layout, docstrings and ``pass``, and nothing else.

    Type annotations count: dataclasses and pydantic models are made from them.
    """
    return _tree_digest(parse_module(source, filename))


def module_closure(module: str, search: ModuleSearch, watched: Iterable[str] = ()) -> Closure:
    """The module's transitive imports of local code, found by reading the sources.

    Counted are imports at any depth (inside functions, ``try:`` and so on) except under ``if TYPE_CHECKING:``.
    pteforge's own modules are a distribution like any other, unless `module` is one of them.

    Args:
        module: dotted name.
        search: where to look.
        watched: further modules that the first one is known to load.
    """
    root = module.partition(".")[0]

    def is_local(found: FoundModule) -> bool:
        return found.origin is Origin.LOCAL and (found.top != PTEFORGE or root == PTEFORGE)

    return walk_imports([module, *watched], search, Scope(is_local))


@dataclass(frozen=True, slots=True)
class ModuleCode:
    """What one module's file says: its digest, modules it imports, and names it takes from them (`imports`)."""

    digest: Digest
    modules: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()


def read_module(found: FoundModule) -> ModuleCode:
    """Digest and imports of a module that has a file. What cannot be parsed is digested as bytes."""
    if found.path is None:
        raise ValueError(f"{found.name} has no file")
    return _analyse(found.path.read_bytes(), found.path.suffix, found.package)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which modules a closure is made of.

    Attributes:
        follow: whether a module's code counts.
        tops: top-level names to look at; None for all.
        idle_parents: top-level names whose packages' ``__init__`` does nothing that a submodule could depend on: it
            counts only where something is imported from it.
        read: gives a module's code.
    """

    follow: Callable[[FoundModule], bool]
    tops: frozenset[str] | None = None
    idle_parents: frozenset[str] = frozenset()
    read: Callable[[FoundModule], ModuleCode] = read_module


def walk_imports(roots: Iterable[str], search: ModuleSearch, scope: Scope) -> Closure:
    """Closure of `roots` over the imports of every module in `scope`."""
    modules: dict[str, Digest] = {}
    outside: set[str] = set()
    unresolved: set[str] = set()
    pending = [(root, True) for root in roots]
    seen = set(pending)
    while pending:
        name, required = pending.pop()
        top = name.partition(".")[0]
        if scope.tops is not None and top not in scope.tops:
            continue
        for prefix in _with_parents(name):
            found = search.find(prefix)
            if found is None:
                # `from package import name` may mean a submodule or anything else bound there.
                unresolved.update([name] if required else [])
                break
            if found.origin is Origin.NAMESPACE:
                continue
            if not scope.follow(found):
                outside.update([top] if found.origin is not Origin.STDLIB else [])
                break
            if prefix in modules or (prefix != name and top in scope.idle_parents):
                continue
            code = scope.read(found)
            modules[prefix] = code.digest
            asked = {(module, True) for module in code.modules} | {(member, False) for member in code.members}
            pending += asked - seen
            seen |= asked
    return Closure(dict(sorted(modules.items())), tuple(sorted(outside)), tuple(sorted(unresolved)))


def file_digest(path: Path) -> Digest:
    """Digest of a Python file outside any search path, by what it means where it can be parsed."""
    return _analyse(path.read_bytes(), path.suffix, "").digest


# The same helpers are read for each model of a zoo. Content, not modification time, is what makes them the same.
@lru_cache(maxsize=16384)
def _analyse(content: bytes, suffix: str, package: str) -> ModuleCode:
    if suffix != ".py":
        return ModuleCode(digest_bytes(content))
    try:
        tree = parse_module(content, "<module>")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ModuleCode(digest_bytes(content))
    imports = imported_modules(tree, package)
    return ModuleCode(_tree_digest(tree), imports.modules, imports.members)


def _with_parents(name: str) -> Iterable[str]:
    """`a`, `a.b`, `a.b.c` for `a.b.c`: importing a module imports its parents first."""
    parts = name.split(".")
    return (".".join(parts[: length + 1]) for length in range(len(parts)))


def _tree_digest(tree: ast.Module) -> Digest:
    # Written out as tokens: each node's class, then its fields; child nodes follow in the order of the stack (which is
    # ours and not Python's, since sums of a thousand terms nest that deep). A class has a fixed number of fields and
    # lists tell their length, so no two trees give the same tokens. Three times as fast as `ast.dump`.
    tokens: list[object] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        tokens.append(node.__class__.__name__)
        values = node.__dict__
        for name in _FIELDS[node.__class__]:
            value = values.get(name)
            elements = [value]
            if value.__class__ is list:
                elements = [element for element in value if not _is_idle(element)] if name in _BODIES else value
                tokens.append(len(elements))
            for element in elements:
                if isinstance(element, ast.AST):
                    stack.append(element)
                    tokens.append(0)
                else:
                    tokens.append(element)
    return digest_bytes(ascii(tokens).encode("ascii"))


_BODIES = frozenset({"body", "orelse", "finalbody"})


# `kind` is the `u` of `u"text"`; `ctx` (load, store, delete) is clear from where an expression stands.
_FIELDS = {
    kind: tuple(name for name in kind._fields if name not in {"kind", "ctx"})
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


def _is_idle(node: ast.AST) -> bool:
    """A statement that computes nothing: ``pass``, or a string alone, which is what docstrings are."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.Pass)
