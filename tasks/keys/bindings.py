"""The names that a module's or class's source binds, as far as reading it can tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_BINDS_UNSEEN = frozenset({"exec", "globals", "locals", "setattr", "vars"})


@dataclass(frozen=True, slots=True)
class Bindings:
    """What a body of statements binds in its own scope.

    Attributes:
        lines: name to the line that binds it first.
        complete: whether there can be no other name. There may be after a star import, beside a ``__getattr__``, or
            where something like ``globals()`` is used.
    """

    lines: Mapping[str, int]
    complete: bool


def module_bindings(tree: ast.Module) -> Bindings:
    """Names bound at the top level of a module."""
    lines = _bound_names(tree.body)
    unseen = "*" in lines or "__getattr__" in lines or any(_binds_unseen(node) for node in ast.walk(tree))
    return Bindings(lines, not unseen)


def class_bindings(definition: ast.ClassDef) -> Bindings:
    """Names bound in a class's own body; complete only if nothing else can add to them."""
    # An `object` written out is the one base that adds nothing callable worth naming.
    bases = [base for base in definition.bases if not (isinstance(base, ast.Name) and base.id == "object")]
    open_ended = bases or definition.keywords or definition.decorator_list
    return Bindings(_bound_names(definition.body), not open_ended)


def _bound_names(body: Sequence[ast.stmt]) -> dict[str, int]:
    lines: dict[str, int] = {}
    for name, line in _bindings(body):
        lines[name] = min(line, lines.get(name, line))
    return lines


def _bindings(body: Sequence[ast.stmt]) -> Iterator[tuple[str, int]]:
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
                continue
            case ast.Lambda():
                continue
            case ast.AnnAssign(value=None):
                continue
            case ast.Import():
                yield from ((alias.asname or alias.name.partition(".")[0], alias.lineno) for alias in node.names)
            case ast.ImportFrom():
                yield from ((alias.asname or alias.name, alias.lineno) for alias in node.names)
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name):
                yield name, node.lineno
            case ast.MatchMapping(rest=str() as name):
                yield name, node.lineno
        stack.extend(ast.iter_child_nodes(node))


def _binds_unseen(node: ast.AST) -> bool:
    return isinstance(node, ast.Global) or (isinstance(node, ast.Name) and node.id in _BINDS_UNSEEN)
