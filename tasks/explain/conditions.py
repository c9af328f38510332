"""Conditions that torch.export meets while it traces: as Python, and what to do about them, in words."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..results.diagnosis import Cause

SELECT_OUTSIDE = (
    "or let the model return all candidates with their scores, and let the application choose among them, as with NMS"
)
LEAVE_OUT = "leave the line out while the model is exported: `if not torch.compiler.is_exporting():`"

_OPERATORS: dict[str, type[ast.cmpop]] = {
    "Eq": ast.Eq,
    "Ne": ast.NotEq,
    "Lt": ast.Lt,
    "Le": ast.LtE,
    "Gt": ast.Gt,
    "Ge": ast.GtE,
}
_OPPOSITES = ((ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE))
_INVERSE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    one: other for pair in _OPPOSITES for one, other in (pair, pair[::-1])
}
_UNBACKED = re.compile(r"\b(?:zu|u)f?\d+\b")
"""A symbol for a value that depends on data, such as ``u0``."""


def in_python(expression: str, names: Mapping[str, str]) -> str:
    """A condition as sympy prints it, in Python's terms: ``Eq(4*s0, 8)`` becomes ``4*x.shape[0] == 8``.

    `names` has what each symbol is: a name, or the source of an input's size as torch has it, ``L['x'].size()[0]``.
    """
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError:
        return expression
    made = ast.fix_missing_locations(_InPython(names).visit(tree))
    return ast.unparse(made)


_SIZE = re.compile(r"L\['(\w+)'\](\S*?)\.size\(\)\[(\d+)\]")


def with_shapes(text: str) -> str:
    """A text in which sizes of inputs are written as the model's code has them: `x.shape[0]`."""
    return _SIZE.sub(r"\1\2.shape[\3]", text)


class _InPython(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or len(node.args) != 2:
            return node
        left, right = node.args
        match node.func.id:
            case "Mod" | "PythonMod":
                return ast.BinOp(left, ast.Mod(), right)
            case "FloorDiv" | "CleanDiv":
                return ast.BinOp(left, ast.FloorDiv(), right)
            case name if name in _OPERATORS:
                return ast.Compare(left, [_OPERATORS[name]()], [right])
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        source = self._names.get(node.id)
        if source is None:
            return node
        try:
            return ast.parse(with_shapes(source), mode="eval").body
        except SyntaxError:
            return node


def negated(condition: str) -> str:
    """The opposite of a condition in Python."""
    tree = ast.parse(condition, mode="eval").body
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1:
        inverse = _INVERSE.get(type(tree.ops[0]))
        if inverse:
            return ast.unparse(ast.Compare(tree.left, [inverse()], tree.comparators))
    return f"not ({condition})"


def _says_empty(condition: str) -> bool:
    """Whether a condition in Python holds only where there is nothing, as `4 * boxes.shape[0] == 0` does."""
    tree = ast.parse(condition, mode="eval").body
    if not (isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.comparators[0], ast.Constant)):
        return False
    return (type(tree.ops[0]), tree.comparators[0].value) in ((ast.Eq, 0), (ast.LtE, 0), (ast.Lt, 1))


def size_finding(needed: str, fixes: Sequence[str], where: str, code: str) -> Cause:
    """The finding for a condition on dynamic sizes that the model's code makes; `fixes` are torch's suggestions."""
    return Cause(
        "dynamic dimension",
        f"this line holds for sizes with `{needed}` only, and the dynamic shapes promise more",
        (*fixes, "or write the line for every size, with `-1` or `x.shape[...]` in place of numbers"),
        where,
        code,
    )


def branch_finding(code: str, expression: str, result: str, held: Mapping[str, Any]) -> Cause:
    """The finding for a line whose Python needs the value of a tensor.

    Args:
        code: the line.
        expression: what torch had to evaluate, in its symbols; empty if it is not known.
        result: its value for the example inputs.
        held: local variables of the line, as draft export reports them: name to texts.
    """
    condition = in_python(expression, _symbols(held)) if expression else ""
    named = bool(condition) and not _UNBACKED.search(condition)
    is_condition = named and result in ("True", "False")
    fact = (condition if result == "True" else negated(condition)) if is_condition else ""
    example = f" (for the example inputs, `{condition}` is {result})" if named else ""
    nothing = bool(fact) and _says_empty(fact)
    if nothing:  # a check of that would make a file that never finds anything
        fact = ""
    say = f"if it is always so, say it before this line, `torch._check({fact})`, and only this way is exported"
    if re.match(r"while\b", code):
        return Cause(
            "data-dependent",
            f"how often this loop runs depends on the value of a tensor{example}",
            (
                "run a fixed number of steps, and let torch.where keep what the steps that are too many would change",
                "or make the body of the loop a method, and loop around its calls: ExecuTorch runs no `while_loop`",
            ),
        )
    if re.match(r"assert\b", code):
        checked = (f"check it with `torch._check({fact})` in place of `assert`",) if fact else ()
        return Cause("data-dependent", f"this assertion needs the value of a tensor{example}", (*checked, LEAVE_OUT))
    if re.match(r"(if|elif)\b", code) or re.search(r"\bif\b.+\belse\b", code) or not expression:
        return Cause(
            "data-dependent",
            f"which way this line goes depends on the value of a tensor{example}",
            (
                (
                    "write both ways as functions and let torch.cond choose, or compute both values and choose with "
                    "torch.where"
                ),
                SELECT_OUTSIDE
                if nothing
                else say
                if fact
                else "if the model always goes one way, decide it in the builder, by a Python value",
            ),
        )
    return Cause(
        "data-dependent",
        f"this line needs a Python number that depends on the value of a tensor{example}",
        (
            *([say] if fact else []),
            "compute with tensors in its place (a mask, torch.where, index_select), or let the builder give the number",
            *([SELECT_OUTSIDE] if nothing else []),
            *(
                ["take an integer from an integer tensor: `.to(torch.int64).item()` in place of `int(...)`"]
                if "int(" in code
                else []
            ),
        ),
    )


def _symbols(held: Mapping[str, Any]) -> dict[str, str]:
    """Symbols of values that depend on data, by the local variables that have them: as a value, or as a size."""
    names: dict[str, str] = {}
    for name, texts in held.items():
        text = str(texts[0]) if isinstance(texts, list | tuple) and texts else str(texts)
        shape = re.match(r"Tensor\(shape: torch\.Size\(\[(.*?)\]\)", text)
        for dimension, size in enumerate(shape[1].split(", ") if shape else ()):
            if _UNBACKED.fullmatch(size):
                names.setdefault(size, f"{name}.shape[{dimension}]")
        if _UNBACKED.fullmatch(text):
            names[text] = name
    return names
