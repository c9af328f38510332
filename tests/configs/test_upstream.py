"""Options named after ExecuTorch's own exist there, with the same defaults."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from pteforge.configs import CompileOptions, EdgeOptions
from pteforge.configs.recipe import Output


def _class(file: str, name: str) -> ast.ClassDef:
    """A class of the installed ExecuTorch, read without importing it."""
    root = importlib.util.find_spec("executorch").submodule_search_locations[0]
    tree = ast.parse(Path(root, file).read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return found


def _fields(found: ast.ClassDef) -> dict[str, ast.expr]:
    return {node.target.id: node.value for node in found.body if isinstance(node, ast.AnnAssign)}


SAME = {
    name: name
    for name in (
        "alloc_graph_input",
        "alloc_graph_output",
        "alloc_mutable_buffers",
        "share_mutable_buffers",
        "allow_lifetime_and_storage_overlap",
    )
}
PASSES = {
    "exir/passes/memory_planning_pass.py:MemoryPlanningPass": SAME,
    "exir/passes/propagate_device_config.py:PropagateDeviceConfig": {
        name: name for name in ("skip_h2d_for_method_inputs", "skip_d2h_for_method_outputs")
    },
    "exir/passes/__init__.py:ToOutVarPass": {"ignore_to_out_var_failure": "ignore_to_out_var_failure"},
}
"""Classes of passes: our options to arguments or fields of theirs."""

BY_OTHER_NAMES = {
    "memory_planning_algo",
    "tensor_alignment",
    "sym_shape_eval",
    "reinplace_extra_ops",
    "generate_etrecord",
}
"""Options that name something for which theirs takes an object, or that are none of the config's."""

HELD = {
    "memory_planning_pass",  # made of options
    "propagate_device_config",
    "sym_shape_eval_pass",
    "to_out_var_pass",
    "reinplace_extra_ops",
}
NOT_OURS = {
    "passes",  # run over a program that is about to be emitted; passes of a recipe run on the edge program
    "dynamic_memory_planning_mode",  # nobody reads it
    "external_mutable_weights",  # for training on the device: no stage exports programs with gradients
}
OF_OUTPUT = {"external_constants": "external_data"}
"""Fields that say which files are made: options of `output` here."""

OF_PASSES = {ours for options in PASSES.values() for ours in options}


def test_every_field_of_the_backend_config_is_decided_on():
    """A field that upstream adds is noticed: it becomes an option, or is left out on purpose."""
    theirs = set(_fields(_class("exir/capture/_config.py", "ExecutorchBackendConfig")))
    ours = set(CompileOptions.model_fields) - OF_PASSES - BY_OTHER_NAMES
    assert theirs == ours | HELD | NOT_OURS | OF_OUTPUT.keys()


def test_output_options_are_those_of_the_backend_config():
    """By default neither side makes a file of weights."""
    fields = _fields(_class("exir/capture/_config.py", "ExecutorchBackendConfig"))
    for theirs, ours in OF_OUTPUT.items():
        assert ast.literal_eval(fields[theirs]) is getattr(Output(), ours) is False


@pytest.mark.parametrize("name", sorted(set(CompileOptions.model_fields) - OF_PASSES - BY_OTHER_NAMES))
def test_compile_options_are_those_of_the_backend_config(name):
    """Each option is a field of ExecutorchBackendConfig, and leaving it out means the same on both sides."""
    field = _fields(_class("exir/capture/_config.py", "ExecutorchBackendConfig"))[name]
    assert ast.literal_eval(field) == getattr(CompileOptions(), name)


def _arguments(found: ast.ClassDef) -> dict[str, ast.expr]:
    """Arguments with defaults of a class's `__init__`, or its fields."""
    made = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    if not made:
        return _fields(found)
    arguments = made[0].args
    return dict(zip([each.arg for each in arguments.args[-len(arguments.defaults) :]], arguments.defaults, strict=True))


@pytest.mark.parametrize("place", [place for place in PASSES if "__init__" not in place])
def test_options_of_passes_are_their_arguments(place):
    """Options about a pass are arguments of it, with the same defaults."""
    defaults = _arguments(_class(*place.split(":")))
    for ours, theirs in PASSES[place].items():
        assert ast.literal_eval(defaults[theirs]) is getattr(CompileOptions(), ours)


EDGE = {
    "check_ir_validity": "_check_ir_validity",
    "skip_dim_order": "_skip_dim_order",
    "core_aten_ops_exception_list": "_core_aten_ops_exception_list",
    "preserve_operators": "preserve_ops",
}


def test_edge_options_are_those_of_the_edge_config():
    """Each field of EdgeCompileConfig is an option; switches have the same defaults, lists are empty."""
    fields = _fields(_class("exir/capture/_config.py", "EdgeCompileConfig"))
    assert set(fields) == set(EDGE.values())
    for ours, theirs in EDGE.items():
        default = getattr(EdgeOptions(), ours)
        assert default == () or ast.literal_eval(fields[theirs]) is default
