"""The imports that a module's source asks for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Imports:
    """What a module imports, as absolute dotted names.

    Attributes:
        modules: names that must be modules.
        members: ``package.name`` for each ``from package import name``: a submodule, or anything else.
    """

    modules: frozenset[str]
    members: frozenset[str]


def imported_modules(tree: ast.Module, package: str) -> Imports:
    """Imports of a module of `package` (its own name if it is a package) anywhere but under ``if TYPE_CHECKING:``."""
    modules: set[str] = set()
    members: set[str] = set()
    for node in _import_statements(tree):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
            continue
        base = _absolute(node, package)
        if base is not None:
            modules.add(base)
            members.update(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
    return Imports(frozenset(modules), frozenset(members))


def _absolute(node: ast.ImportFrom, package: str) -> str | None:
    """Name of the module an ``import from`` reads; None for a relative one that leaves the top-level package."""
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
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and _type_checking(node.test):
            stack.extend(node.orelse)
        elif isinstance(node, ast.If) and _not_type_checking(node.test):
            stack.extend(node.body)
        else:
            stack.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, _HOLDS_STATEMENTS))


_HOLDS_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def _type_checking(test: ast.expr) -> bool:
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else None
    return name == "TYPE_CHECKING"


def _not_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _type_checking(test.operand)
