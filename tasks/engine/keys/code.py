"""Digests of Python code by what it means, of one module or with what it imports; and stage keys, which have them."""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TypeAlias

from ....artifacts.digest import Digest, digest_bytes, digest_json
from .loaded import source
from .search import FoundModule, ModuleOrigin, ModuleSearch

PTEFORGE = __name__.partition(".")[0]  # the top-level package that this code is part of

CARRIERS = (
    *("errors", "configs", "artifacts", "flows", "api", "tasks.engine", "tasks.*.stages"),
    *("tasks.results.finding", "tasks.results.tables"),
)
"""Modules and packages below pteforge that only pass values between users, stages and the store, or show results.

An asterisk stands for one name. Their code is no part of any key; the values that they pass on are: a stage's params,
and the digests of its inputs. `tests/tasks/engine/keys/test_carriers.py` guards the bytes that they write for stages
(canonical JSON, manifests, refs, params as JSON) with literal bytes. A stage's own module counts; other stages, which
it may import for their params, do not.
"""

_PARSING = threading.Lock()
"""CPython before 3.11.8 counts the recursion depth of `ast.parse` per interpreter, so it raises
SystemError where another thread parses in the middle of it (python/cpython#106905)."""
_ATTEMPTS = 10


def parse_module(source: str | bytes, filename: str) -> ast.Module:
    with _PARSING:
        try:
            return _parse(source, filename)
        except SyntaxError:
            # With warnings as errors, a doubtful escape sequence ends here too, but does not prevent importing.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _parse(source, filename)


def _parse(source: str | bytes, filename: str) -> ast.Module:
    """Tries again where code without our lock parsed meanwhile: Prefect's, or that which formats a traceback."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(SystemError):
            return ast.parse(source, filename)
    return ast.parse(source, filename)


# A zoo may name one module's builders a thousand times.
@lru_cache(maxsize=256)
def parsed(content: bytes, filename: str) -> ast.Module:
    """Caches `parse_module`; the result must not be changed."""
    return parse_module(content, filename)


def file_digest(path: Path) -> Digest:
    """Digest of a Python file outside of any search path; of its bytes where it cannot be parsed."""
    return _analyse(path.read_bytes(), path.suffix, "").digest


def source_digest(content: bytes) -> Digest:
    """What `file_digest` returns for a file with this content."""
    return _analyse(content, ".py", "").digest


@dataclass(frozen=True, slots=True)
class ModuleCode:
    """One module's code."""

    digest: Digest  # of its meaning, or of its bytes where it cannot be parsed
    modules: frozenset[str] = frozenset()  # absolute dotted names in its imports that must be modules
    # ``package.name`` for each ``from package import name``: a submodule, or anything else
    members: frozenset[str] = frozenset()


def read_module(found: FoundModule) -> ModuleCode:
    if found.path is None:
        raise ValueError(f"{found.name} has no file")
    return _analyse(source(found.path), found.path.suffix, found.package)


@dataclass(frozen=True, slots=True)
class Closure:
    """The code that a module imports."""

    modules: Mapping[str, Digest]  # name to digest of each module that was followed, parent packages included
    # sorted top-level names of modules that are imported but not followed, without Python's own
    distributions: tuple[str, ...]
    unresolved: tuple[str, ...]  # sorted names of imported modules that do not exist here (often inside ``try:``)


def only_carries(name: str, module: str) -> bool:
    """Whether a module is one of `CARRIERS` and neither is nor contains the digested `module`."""
    if f"{module}.".startswith(f"{name}."):
        return False
    return any(fnmatchcase(f"{name}.", f"{PTEFORGE}.{carrier}.*") for carrier in CARRIERS)


def module_closure(module: str, finder: ModuleSearch, watched: Iterable[str] = ()) -> Closure:
    """The module's transitive imports of local code, and those of the `watched` modules that it is known to load.

    Reads the sources. Imports count at any depth (inside functions, ``try:`` and so on) except under
    ``if TYPE_CHECKING:``. pteforge is a distribution like any other, unless `module` is part of it: then it counts as
    the code of a stage does, without what only carries.
    """
    root = module.partition(".")[0]

    def is_local(found: FoundModule) -> bool:
        if found.top == PTEFORGE:
            return root == PTEFORGE and found.path is not None and not only_carries(found.name, module)
        return found.origin is ModuleOrigin.LOCAL

    closure = walk_imports([module, *watched], finder, Scope(is_local, idle_parents=frozenset({PTEFORGE} & {root})))
    if root != PTEFORGE:
        return closure
    return replace(closure, distributions=tuple(name for name in closure.distributions if name != PTEFORGE))


@dataclass(frozen=True, slots=True)
class Scope:
    """Which modules a closure consists of."""

    follow: Callable[[FoundModule], bool]
    tops: frozenset[str] | None = None  # top-level names to look at; None for all
    # top-level names whose packages' ``__init__`` does nothing that a submodule could depend on: it counts only where
    # something is imported from it
    idle_parents: frozenset[str] = frozenset()
    read: Callable[[FoundModule], ModuleCode] = read_module


def walk_imports(roots: Iterable[str], finder: ModuleSearch, scope: Scope) -> Closure:
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
        parts = name.split(".")
        for length in range(len(parts)):  # importing a module imports its parents first
            found = finder.find(prefix := ".".join(parts[: length + 1]))
            if found is None:
                # `from package import name` may mean a submodule or anything else bound there.
                unresolved.update([name] if required else [])
                break
            if found.origin is ModuleOrigin.NAMESPACE:
                continue
            if not scope.follow(found):
                outside.update([top] if found.origin is not ModuleOrigin.STDLIB else [])
                break
            if prefix in modules or (prefix != name and top in scope.idle_parents):
                continue
            code = scope.read(found)
            modules[prefix] = code.digest
            imported = {(module, True) for module in code.modules} | {(member, False) for member in code.members}
            pending += imported - seen
            seen |= imported
    return Closure(dict(sorted(modules.items())), tuple(sorted(outside)), tuple(sorted(unresolved)))


# Each model of a zoo reads the same helpers. They are the same by content, not by modification time.
@lru_cache(maxsize=16384)
def _analyse(content: bytes, suffix: str, package: str) -> ModuleCode:
    if suffix != ".py":
        return ModuleCode(digest_bytes(content))
    try:
        tree = parse_module(content, "<module>")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ModuleCode(digest_bytes(content))
    modules: set[str] = set()
    members: set[str] = set()
    for node in _import_statements(tree):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif (base := imported_module(node, package)) is not None:
            modules.add(base)
            members.update(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
    return ModuleCode(tree_digest(tree), frozenset(modules), frozenset(members))


def imported_module(node: ast.ImportFrom, package: str) -> str | None:
    """Name of the module that an ``import from`` reads; None for a relative one that leaves the top-level package."""
    if not node.level:
        return node.module
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return None
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _import_statements(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        match node:
            case ast.Import() | ast.ImportFrom():
                yield node
            case ast.If(test=test, orelse=orelse) if _is_type_checking(test):
                stack.extend(orelse)
            case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=test), body=body) if _is_type_checking(test):
                stack.extend(body)
            case _:
                stack.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, _HOLDS_STATEMENTS))


_HOLDS_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else None
    return name == "TYPE_CHECKING"


def tree_digest(tree: ast.Module) -> Digest:
    """Digest of a module, type annotations included, without comments, layout, docstrings and ``pass``."""
    # Written out as tokens: each node's class, then its fields; child nodes follow in the order of the stack (a list,
    # since sums of a thousand terms nest deeper than Python recurses). A class has a fixed number of fields, and lists
    # state their length, so no two trees have the same tokens. Three times as fast as `ast.dump`.
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


_LOCK = threading.Lock()  # so that threads that need the same modules read and parse them once


def stage_code_digest(module: str) -> Digest:
    """Digest of a stage's (or target's) module and of what it imports from pteforge and from its own package.

    Its other imports count by version; `CARRIERS` do not count. The ``__init__`` of a pteforge package counts where
    something is imported from it, but not just because a module is within: those files only define and re-export, and a
    new version number is no reason to lower everything again. Cached, since the process keeps the code that it loaded.
    Raises ValueError if there is no such module, and CodeChanged if the code has changed since the process started.
    """
    with _LOCK:
        return _code_digest(module)


@cache
def _code_digest(module: str) -> Digest:
    def decides(found: FoundModule) -> bool:
        return found.path is not None and not only_carries(found.name, module)

    packages = frozenset({PTEFORGE, module.partition(".")[0]})
    scope = Scope(decides, packages, idle_parents=frozenset({PTEFORGE}), read=_read)
    closure = walk_imports([module], _finder(), scope)
    if module not in closure.modules:
        raise ValueError(f"no module {module} to make a key of")
    return digest_json(closure.modules)


# Stages have most of their modules in common.
_read = cache(read_module)
_finder = cache(ModuleSearch)


JSON: TypeAlias = Mapping[str, "JSON"] | Sequence["JSON"] | str | int | float | bool | None  # a JSON value


@dataclass(frozen=True)
class StageKey:
    """Everything that decides the output of a stage. Equal keys mean equal outputs."""

    stage: str
    code: Digest  # digest of the code it runs (`stage_code_digest`)
    versions: Mapping[str, str]  # by distribution, or by whatever else has one
    inputs: Mapping[str, Digest]  # identity of each input artifact, by role
    params: JSON  # everything that it reads besides its inputs

    def fields(self) -> dict[str, JSON]:
        """The key as JSON: kept with its digest, so that two keys can be compared field by field."""
        mappings: dict[str, JSON] = {"versions": dict(self.versions), "inputs": dict(self.inputs)}
        return {"stage": self.stage, "code": self.code, **mappings, "params": self.params}

    def digest(self) -> Digest:
        return self._digest

    @cached_property
    def _digest(self) -> Digest:
        return digest_json(self.fields())
