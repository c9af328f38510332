"""Functions that a recipe names between the steps of quantization, for the choice of layers, and over edge managers."""

from __future__ import annotations

import importlib
import shutil
import sys

import pteforge
import pytest
import torch
from pteforge.errors import CodeChanged, ConfigError, SourceError, StageFailed
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import ZOO, checked_recipe

NAMED = "recipe_functions"


@pytest.fixture
def layers():
    """A network of two linear layers."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))


@pytest.fixture
def lower(layers, store):
    """Lowers that network with XNNPACK up to a stage."""

    def lowered(until, *, rows=2, calibration=None, **fields):
        example = (torch.linspace(-1, 1, 32 * rows).reshape(rows, 32),)
        recipe = checked_recipe("xnnpack", **fields)
        given = {"recipe": recipe, "calibration": calibration, "name": "layers", "store": store}
        return pteforge.export(layers, example, until=until, **given)

    return lowered


def operators(program):
    """Names of the operators that a program calls, as text."""
    return " ".join(str(node.target) for node in program.graph.nodes if node.op == "call_function")


def test_functions_of_quantization(lower, tmp_path, monkeypatch):
    """They get their arguments and change the quantized program; `quantize` runs again when changed code is loaded."""
    shutil.copy(ZOO / f"{NAMED}.py", tmp_path / "own_functions.py")
    monkeypatch.syspath_prepend(tmp_path)
    passes = [{"callable": "own_functions:tanh_for_relu", "kwargs": {"activation": "sigmoid"}}]
    quantize = {"post_prepare_passes": passes, "pre_convert_passes": [{"callable": "own_functions:widen"}]}
    result = lower("quantize", quantize=quantize)
    assert "aten.sigmoid.default" in operators(result.artifact("quantize"))
    path = tmp_path / "own_functions.py"
    path.write_text(path.read_text() + "\nUNUSED = 1\n")
    with pytest.raises(CodeChanged, match=r"own_functions.py changed after.*reload"):
        lower("quantize", quantize=quantize)
    importlib.reload(sys.modules["own_functions"])
    (again,) = (stage for stage in lower("quantize", quantize=quantize).stages if stage.stage == "quantize")
    assert {change.field for change in again.differs} == {"params.post_prepare_passes", "params.pre_convert_passes"}
    sys.modules.pop("own_functions", None)


@pytest.mark.parametrize(
    ("fields", "error", "problem"),
    [
        (
            {"quantize": {"pre_prepare_passes": [{"callable": f"{NAMED}:sigmoid_for_rleu"}]}},
            ConfigError,
            r"recipe.quantize.pre_prepare_passes\[0\].callable: .*did you mean 'sigmoid_for_relu'",
        ),
        (
            {"quantize": {"pre_convert_passes": [{"callable": f"{NAMED}:widen", "kwargs": {"to": 3}}]}},
            ConfigError,
            r"recipe.quantize.pre_convert_passes\[0\].kwargs.to: .*takes no argument 'to'",
        ),
        (
            {"quantize": {"post_convert_passes": [{"callable": f"{NAMED}:without_a_result"}]}},
            StageFailed,
            r"quantize.post_convert_passes\[0\] recipe_functions:without_a_result gave a NoneType, and not the module",
        ),
        (
            {"edge_manager_passes": [{"callable": f"{NAMED}:passes_of_no_method", "before": "partition"}]},
            StageFailed,
            r"passes_of_no_method gave passes for the methods \['nowhere'\]; the model has \['forward'\]",
        ),
        (
            {"edge_manager_passes": [{"callable": f"{NAMED}:no_passes"}]},
            StageFailed,
            "edge_manager_passes: recipe_functions:no_passes gave a int, and not a pass",
        ),
        (
            {"source_transforms": [{"torchao": "int8_weight_only", "filter_fn": f"{NAMED}:every_module"}]},
            StageFailed,
            "chooses 'the model', a Sequential without a weight; let it return False",
        ),
        (
            {"source_transforms": [{"torchao": "int8_weight_only", "filter_fn": f"{NAMED}:raises"}]},
            StageFailed,
            r"source_transforms\[0\].filter_fn: recipe_functions:raises failed: RuntimeError: no layer pleases me",
        ),
    ],
)
def test_wrong_functions(lower, fields, error, problem):
    """What is missing is found before any work starts; what fails names the field and the function."""
    with pytest.raises((error, SourceError), match=problem):
        lower("compile", **fields)


def test_filter_functions(lower):
    """A function chooses the layers to quantize; it takes the place of patterns."""
    transform = {"torchao": "int8_weight_only", "filter_fn": f"{NAMED}:only_first"}
    result = lower("source_transform", source_transforms=[transform])
    program = result.artifact("source_transform")
    integers = {name.partition(".")[0] for name, value in program.state_dict.items() if value.dtype == torch.int8}
    assert integers == {"0"}
    with pytest.raises(ValueError, match="`filter_fn` as well as `exclude`"):
        checked_recipe("xnnpack", source_transforms=[{**transform, "exclude": ["2"]}])


@pytest.mark.parametrize("before", ["partition", "compile"])
def test_passes_over_edge_managers(layers, store, before):
    """Functions see all methods, and change those that they return passes for, before or after partitioning."""
    passes = [
        {"callable": f"{NAMED}:manager_passes", "kwargs": {"methods": ["first", "second"]}, "before": before},
        {"callable": f"{NAMED}:passes_of_the_last", "before": before},
        {"callable": f"{NAMED}:next_of_method", "takes_program": True, "before": before},
    ]
    recipe = checked_recipe("portable", edge_manager_passes=passes)
    example = (torch.ones(2, 32),)
    methods, examples = {"first": layers, "second": layers}, {"first": example, "second": example}
    result = pteforge.export(methods, examples, recipe=recipe, store=store, until="serialize")
    manager = result.edge_manager()
    assert "aten.tanh.default" in operators(manager.exported_program("first"))
    assert "aten.exp.default" in operators(manager.exported_program("second"))
    stages = [stage.stage for stage in result.stages]
    assert ("edge_manager_passes" in stages) == (before == "partition")


@pytest.mark.parametrize("rows", [1, 2])
def test_batches_of_any_size(lower, rows):
    """Samples of other batch sizes than the example's are observed where the recipe says so; the file's shape stays."""
    samples = [(torch.ones(size, 32),) for size in (1, 3)]
    result = lower("quantize", rows=rows, quantize={"dynamic_batch_size": True}, calibration=samples)
    program = result.artifact("quantize")
    shapes = [node.meta["val"].shape for node in program.graph.nodes if node.op == "placeholder"]
    assert shapes[-1] == (rows, 32)
    assert not program.range_constraints
    with pytest.raises(SourceError, match=r"input 0 has size .*the program takes [12]; "):
        lower("quantize", rows=rows, quantize={}, calibration=samples)


def test_a_batch_that_cannot_vary(nets, store):
    """A model that takes one batch size only is an error that says what to leave out."""
    recipe = checked_recipe("xnnpack", quantize={"dynamic_batch_size": True})
    fixed = torch.nn.Sequential(nets.Function(lambda values: values.reshape(2, 2, 2).sum(0)), torch.nn.Linear(2, 2))
    with pytest.raises(SourceError, match=r"`quantize.dynamic_batch_size`: .*'forward' cannot be exported"):
        pteforge.export(fixed, (torch.ones(4, 2),), recipe=recipe, store=store)
    program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(2, 4),))
    with pytest.raises(SourceError, match=r"exports .*, and a .pt2 file has none"):
        pteforge.export(program, recipe=recipe, store=store)


def test_memory_by_method(layers, store):
    """A method has memory planning of its own."""
    recipe = checked_recipe({"target": "portable", "methods": {"naive": {"memory_planning_algo": "naive"}}})
    example = (torch.ones(2, 32),)
    deep = torch.nn.Sequential(layers, layers)
    methods, examples = {"greedy": deep, "naive": deep}, {"greedy": example, "naive": example}
    result = pteforge.export(methods, examples, recipe=recipe, store=store)
    sizes = {method.name: sum(method.planned_memory) for method in read_pte(result.pte).methods}
    assert sizes["greedy"] < sizes["naive"]
    with pytest.raises(ValueError, match=r"`compile.share_mutable_buffers` needs `alloc_mutable_buffers` of 'naive'"):
        checked_recipe(
            {"target": "portable", "methods": {"naive": {"alloc_mutable_buffers": False}}},
            compile={"share_mutable_buffers": True},
        )
