"""Options named after ExecuTorch's own exist there, with the same defaults."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from pteforge.configs import CompileOptions, EdgeOptions


def _class(file: str, name: str) -> ast.ClassDef:
    """A class of the installed ExecuTorch, read without importing it."""
    root = importlib.util.find_spec("executorch").submodule_search_locations[0]
    tree = ast.parse(Path(root, file).read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return found


def _fields(found: ast.ClassDef) -> dict[str, ast.expr]:
    return {node.target.id: node.value for node in found.body if isinstance(node, ast.AnnAssign)}


PLANNING = ["alloc_graph_input", "alloc_graph_output", "share_mutable_buffers"]


@pytest.mark.parametrize("name", sorted(set(CompileOptions.model_fields) - set(PLANNING)))
def test_compile_options_are_those_of_the_backend_config(name):
    """Each option is a field of ExecutorchBackendConfig, and leaving it out means the same on both sides."""
    field = _fields(_class("exir/capture/_config.py", "ExecutorchBackendConfig"))[name]
    assert ast.literal_eval(field) == getattr(CompileOptions(), name)


@pytest.mark.parametrize("name", PLANNING)
def test_planning_options_are_those_of_the_planning_pass(name):
    """The options about memory planning are arguments of MemoryPlanningPass, with the same defaults."""
    found = _class("exir/passes/memory_planning_pass.py", "MemoryPlanningPass")
    (init,) = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    arguments = init.args.args[-len(init.args.defaults) :]
    defaults = dict(zip([argument.arg for argument in arguments], init.args.defaults, strict=True))
    assert ast.literal_eval(defaults[name]) is getattr(CompileOptions(), name)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("check_ir_validity", "_check_ir_validity"), ("skip_dim_order", "_skip_dim_order")]
)
def test_edge_options_are_those_of_the_edge_config(ours, theirs):
    """Each option is a field of EdgeCompileConfig with the same default, and so is the list of operators to keep."""
    fields = _fields(_class("exir/capture/_config.py", "EdgeCompileConfig"))
    assert ast.literal_eval(fields[theirs]) is getattr(EdgeOptions(), ours)
    assert "preserve_ops" in fields
