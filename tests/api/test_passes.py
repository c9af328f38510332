"""Passes over edge programs that a recipe names by import path; their code is part of the key."""

from __future__ import annotations

import copy
import functools
import importlib
import shutil
import sys

import pteforge
import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.export import ExportRecipe, ExportSession, LoweringRecipe, StageType
from pteforge.errors import CodeChanged, ConfigError, SourceError, StageFailed
from pteforge.tests.lowering import ZOO, checked_recipe

pytestmark = pytest.mark.slow

PASSES = ZOO / "edge_passes.py"


@pytest.fixture
def lower(net, example, store, tmp_path, monkeypatch):
    """Lowers the network to an edge program with passes from a module of the test's own."""
    shutil.copy(PASSES, tmp_path / "own_edge_passes.py")
    monkeypatch.syspath_prepend(tmp_path)

    def lowered(*passes, until="partition", **fields):
        recipe = checked_recipe("xnnpack", **({"edge": {"passes": list(passes)}} | fields))
        return pteforge.export(net, example, recipe=recipe, name="passes", store=store, until=until)

    yield lowered
    sys.modules.pop("own_edge_passes", None)


def operators(program):
    """Names of the operators that a program calls, as text."""
    return " ".join(str(node.target) for node in program.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize(
    "named",
    [
        {"callable": "own_edge_passes:Replace", "kwargs": {"activation": "tanh"}},
        {"callable": "own_edge_passes:two"},  # the second one finds nothing left to replace
        {"callable": "own_edge_passes:for_method", "takes_program": True},
    ],
    ids=["class", "function", "function of the program"],
)
def test_callables(lower, named):
    """A class gets its arguments, a function with `takes_program` the method's name and its ATen program."""
    names = operators(lower(named).artifact("edge"))
    assert "aten.tanh.default" in names
    assert "aten.relu.default" not in names
    assert "aten.sigmoid.default" not in names


def test_passes_of_one_method(lower, nets, store):
    """Passes of a method in a specialization change that method only."""
    own = {"edge": {"passes": [{"callable": "own_edge_passes:Replace"}]}}
    recipe = checked_recipe({"target": "portable", "methods": {"second": own}})
    del lower  # has made the module with the passes importable
    net, given = nets.Normed(), (torch.ones(2, 4),)
    result = pteforge.export(
        {"first": net, "second": net}, {"first": given, "second": given}, recipe=recipe, store=store, until="edge"
    )
    found = {method: operators(result.artifact("edge", method=method)) for method in result.methods}
    assert ("aten.relu.default" in found["first"], "aten.sigmoid.default" in found["first"]) == (True, False)
    assert ("aten.relu.default" in found["second"], "aten.sigmoid.default" in found["second"]) == (False, True)


def test_edits_need_a_reload(lower, tmp_path):
    """A module that was edited after it was imported runs as it was, so it is not recorded until it is reloaded."""
    named = {"callable": "own_edge_passes:two"}
    importlib.import_module("own_edge_passes")  # where another test has made the stage, this one runs nothing at first
    assert "aten.tanh.default" in operators(lower(named).artifact("edge"))
    code = tmp_path / "own_edge_passes.py"
    code.write_text(code.read_text().replace('[Replace("tanh"), Replace("sigmoid")]', '[Replace("sigmoid")]'))
    with pytest.raises(CodeChanged, match=r"own_edge_passes\.py changed after"):
        lower(named)
    importlib.reload(sys.modules["own_edge_passes"])
    assert "aten.sigmoid.default" in operators(lower(named).artifact("edge"))
    code.write_text(code.read_text() + "# a comment\n")
    lower(named | {"kwargs": {}})


@pytest.mark.filterwarnings("ignore:This API and all of its related functionality")
def test_an_export_recipes_passes(lower, net, example, store):
    """Functions in `edge_transform_passes` equal passes that a recipe names: a cache hit."""
    lower({"callable": "own_edge_passes:for_method", "takes_program": True})
    import own_edge_passes

    lowering = LoweringRecipe(partitioners=[XnnpackPartitioner()], edge_transform_passes=[own_edge_passes.for_method])
    recipe = ExportRecipe(name="theirs", lowering_recipe=lowering, strict=False)
    result = pteforge.export(net, example, recipe=recipe, name="passes", store=store, until="partition")
    assert {stage.status for stage in result.stages[1:]} == {"cached"}
    assert "aten.relu.default" not in operators(result.artifact("edge"))


def test_code_is_in_the_key(lower, tmp_path):
    """An edit of a docstring is a hit; other code runs `edge` again, and no later stage if the program is equal."""
    named = {"callable": "own_edge_passes:Replace"}
    lower(named)
    path = tmp_path / "own_edge_passes.py"
    path.write_text(path.read_text().replace("Replaces relu", "Replaces ReLU"))
    assert [stage.status for stage in lower(named).stages] == ["ran", *["cached"] * 3]
    path.write_text(path.read_text() + "\nUNUSED = 1\n")
    importlib.reload(sys.modules["own_edge_passes"])
    again = lower(named)
    assert [stage.status for stage in again.stages] == ["ran", "cached", "ran", "cached"]
    (edge,) = (stage for stage in again.stages if stage.stage == "edge")
    assert [change.field for change in edge.differs] == ["params.passes"]


def test_without_passes_nothing_changes(lower, exported):
    """An empty list of passes is the same as none."""
    assert {stage.status for stage in lower().stages[1:]} == {"cached"}
    assert operators(lower().artifact("edge")) == operators(exported.artifact("edge"))


@pytest.mark.filterwarnings("ignore:This API and all of its related functionality")
def test_aten_passes(lower, net, example, store, tmp_path):
    """Functions change the ATen program in a stage of its own, which runs again when their code changes."""
    named = {"callable": "own_edge_passes:other_activation"}
    unfolded = functools.partial(lower, fold_batch_norms=False)  # as ExecuTorch's session has the program
    result = unfolded(aten_passes=[named])
    assert [stage.stage for stage in result.stages if stage.status == "ran"][-3:] == [
        "aten_passes",
        "edge",
        "partition",
    ]
    assert "aten.tanh.default" in operators(result.artifact("aten_passes"))
    assert "aten.relu.default" not in operators(result.artifact("edge"))
    import own_edge_passes

    recipe = ExportRecipe(
        lowering_recipe=LoweringRecipe(partitioners=[XnnpackPartitioner()]),
        aten_transform_passes=[own_edge_passes.other_activation],
        pipeline_stages=[StageType.TORCH_EXPORT],
        strict=False,
    )
    session = ExportSession(copy.deepcopy(net).eval(), [example], recipe)
    session.export()
    theirs, ours = (operators(made) for made in (session.get_exported_program(), result.artifact("aten_passes")))
    assert (theirs.count("aten.tanh.default"), theirs.count("relu")) == (ours.count("aten.tanh.default"), 0)
    recipe.pipeline_stages = None
    again = pteforge.export(net, example, recipe=recipe, name="passes", store=store, until="partition")
    assert {stage.status for stage in again.stages[1:]} == {"cached"}
    path = tmp_path / "own_edge_passes.py"
    path.write_text(path.read_text() + "\nUNUSED = 1\n")
    importlib.reload(own_edge_passes)
    changed = {stage.stage: stage.status for stage in unfolded(aten_passes=[named]).stages}
    assert (changed["aten_passes"], changed["edge"]) == ("ran", "cached")
    sigmoid = unfolded(aten_passes=[{**named, "kwargs": {"activation": "sigmoid"}}])
    assert "aten.sigmoid.default" in operators(sigmoid.artifact("edge"))


@pytest.mark.parametrize(
    ("field", "name", "kwargs", "error", "problem"),
    [
        ("edge.passes", "Replce", {}, ConfigError, r"passes\[0\].callable: .*did you mean 'Replace'"),
        ("edge.passes", "Replace", {"to": "tanh"}, ConfigError, r"passes\[0\].kwargs.to: .*; it takes activation"),
        ("edge.passes", "Replace", {"activation": 3}, StageFailed, r"passes\[0\] own_edge_passes:Replace"),
        ("edge.passes", "nothing", {}, StageFailed, "gave a float, and not a pass"),
        ("aten_passes", "nowhere", {}, ConfigError, r"passes\[0\].callable: "),
        ("aten_passes", "two", {}, StageFailed, r"passes\[0\] own_edge_passes:two failed: TypeError"),
        ("aten_passes", "forgets_the_program", {}, StageFailed, "gave a NoneType, and not the program; return"),
        ("aten_passes", "other_activation", {"activation": "no"}, StageFailed, "activation failed: AttributeError"),
    ],
)
def test_wrong_passes(lower, field, name, kwargs, error, problem):
    """What is missing is found before any work starts, by its field; what fails names the function."""
    named = {"callable": f"own_edge_passes:{name}", "kwargs": kwargs}
    with pytest.raises(error, match=problem) as caught:
        lower(named) if field == "edge.passes" else lower(aten_passes=[named])
    assert field in str(caught.value)
    assert error is ConfigError or isinstance(caught.value.__cause__, SourceError)
