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

_OPERATORS = {"Eq": ast.Eq, "Ne": ast.NotEq, "Lt": ast.Lt, "Le": ast.LtE, "Gt": ast.Gt, "Ge": ast.GtE}
_OPPOSITES = ((ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE))
_UNBACKED = re.compile(r"\b(?:zu|u)f?\d+\b")  # a symbol for a value that depends on data, such as ``u0``
_SIZE = re.compile(r"L\['(\w+)'\](\S*?)\.size\(\)\[(\d+)\]")


def in_python(expression: str, names: Mapping[str, str]) -> str:
    """A condition as sympy prints it, in Python's terms: ``Eq(4*s0, 8)`` becomes ``4*x.shape[0] == 8``.

    `names` has a name for each symbol, or the source of an input's size as torch has it, ``L['x'].size()[0]``.
    """
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError:
        return expression
    return ast.unparse(ast.fix_missing_locations(_InPython(names).visit(tree)))


def with_shapes(text: str) -> str:
    """Writes sizes of inputs in a text as the model's code has them: `x.shape[0]`."""
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
        try:
            return ast.parse(with_shapes(self._names[node.id]), mode="eval").body
        except (KeyError, SyntaxError):
            return node


def negated(condition: str) -> str:
    """The opposite of a condition in Python."""
    tree = ast.parse(condition, mode="eval").body
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1:
        for one, other in (*_OPPOSITES, *(pair[::-1] for pair in _OPPOSITES)):
            if isinstance(tree.ops[0], one):
                return ast.unparse(ast.Compare(tree.left, [other()], tree.comparators))
    return f"not ({condition})"


def _says_empty(condition: str) -> bool:
    """Whether a condition in Python holds only where there is nothing, as `4 * boxes.shape[0] == 0` does."""
    tree = ast.parse(condition, mode="eval").body
    if not (isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.comparators[0], ast.Constant)):
        return False
    return (type(tree.ops[0]), tree.comparators[0].value) in ((ast.Eq, 0), (ast.LtE, 0), (ast.Lt, 1))


def size_finding(needed: str, fixes: Sequence[str], where: str, code: str) -> Cause:
    """The finding for a line that only some of the dynamic sizes pass; `fixes` are torch's suggestions."""
    return Cause(
        "dynamic dimension",
        f"this line holds for sizes with `{needed}` only, and the dynamic shapes promise more",
        (*fixes, "or write the line for every size, with `-1` or `x.shape[...]` in place of numbers"),
        where,
        code,
    )


def branch_finding(code: str, expression: str, result: str, held: Mapping[str, Any]) -> Cause:
    """The finding for a line of code whose Python needs the value of a tensor.

    torch had to evaluate `expression`, in its symbols, or empty if it is not known; `result` is its value for the
    example inputs. `held` are the line's local variables, as draft export reports them: name to texts.
    """
    condition = in_python(expression, _symbols(held)) if expression else ""
    named = bool(condition) and not _UNBACKED.search(condition)
    fact = ""
    if named and result in ("True", "False"):
        fact = condition if result == "True" else negated(condition)
    example = f" (for the example inputs, `{condition}` is {result})" if named else ""
    nothing = bool(fact) and _says_empty(fact)
    if nothing:  # a check of that would make a file that never finds anything
        fact = ""
    say = f"if it is always so, say it before this line, `torch._check({fact})`, and only this way is exported"
    if re.match(r"while\b", code):
        problem = f"how often this loop runs depends on the value of a tensor{example}"
        fixed = "run a fixed number of steps, and let torch.where keep what the steps that are too many would change"
        around = "or make the body of the loop a method, and loop around its calls: ExecuTorch runs no `while_loop`"
        return Cause("data-dependent", problem, (fixed, around))
    if re.match(r"assert\b", code):
        checked = (f"check it with `torch._check({fact})` in place of `assert`",) if fact else ()
        return Cause("data-dependent", f"this assertion needs the value of a tensor{example}", (*checked, LEAVE_OUT))
    if re.match(r"(if|elif)\b", code) or re.search(r"\bif\b.+\belse\b", code) or not expression:
        problem = f"which way this line goes depends on the value of a tensor{example}"
        both = (
            "write both ways as functions and let torch.cond choose, or compute both values and choose with torch.where"
        )
        decide = say if fact else "if the model always goes one way, decide it in the builder, by a Python value"
        return Cause("data-dependent", problem, (both, SELECT_OUTSIDE if nothing else decide))
    remedies = [say] if fact else []
    with_tensors = "compute with tensors in its place (a mask, torch.where, index_select)"
    remedies.append(f"{with_tensors}, or let the builder give the number")
    if nothing:
        remedies.append(SELECT_OUTSIDE)
    if "int(" in code:
        remedies.append("take an integer from an integer tensor: `.to(torch.int64).item()` in place of `int(...)`")
    problem = f"this line needs a Python number that depends on the value of a tensor{example}"
    return Cause("data-dependent", problem, tuple(remedies))


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
