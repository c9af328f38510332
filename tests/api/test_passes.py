"""Passes that a recipe names by import path: run over edge programs, in the key by their code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pteforge
import pytest
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.export import ExportRecipe, LoweringRecipe
from pteforge.configs import Recipe
from pteforge.errors import ConfigError, SourceError, StageFailed

pytestmark = pytest.mark.slow

PASSES = Path(__file__).parent / "zoo" / "edge_passes.py"


@pytest.fixture
def lower(net, example, store, tmp_path, monkeypatch):
    """Lowers the network to an edge program with passes from a module of the test's own."""
    shutil.copy(PASSES, tmp_path / "own_edge_passes.py")
    monkeypatch.syspath_prepend(tmp_path)

    def lowered(*passes, until="partition", **fields):
        written = {"specializations": [{"target": "xnnpack"}], "edge": {"passes": list(passes)}, **fields}
        recipe = Recipe.model_validate(written)
        return pteforge.export(net, example, recipe=recipe, name="passes", store=store, until=until)

    yield lowered
    import sys

    sys.modules.pop("own_edge_passes", None)


def operators(program):
    """Names of the operators that a program calls."""
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_a_class_with_arguments(lower):
    """The pass changes the edge program, with its arguments, and what follows goes on from that."""
    result = lower({"callable": "own_edge_passes:Replace", "kwargs": {"activation": "tanh"}})
    names = " ".join(operators(result.artifact("edge")))
    assert "aten.tanh.default" in names
    assert "aten.relu.default" not in names


def test_a_function_gives_several(lower):
    """They run in order: the second finds nothing to replace any more."""
    names = " ".join(operators(lower({"callable": "own_edge_passes:two"}, until="edge").artifact("edge")))
    assert "aten.tanh.default" in names
    assert "aten.sigmoid.default" not in names


def test_passes_of_one_method(lower, nets, store):
    """What the specialization says of a method's passes counts for that method only."""
    own = {"edge": {"passes": [{"callable": "own_edge_passes:Replace"}]}}
    recipe = Recipe.model_validate({"specializations": [{"target": "portable", "methods": {"second": own}}]})
    import torch

    del lower  # has made the module with the passes importable
    net, given = nets.Net(), (torch.ones(2, 4),)
    result = pteforge.export(
        {"first": net, "second": net}, {"first": given, "second": given}, recipe=recipe, store=store, until="edge"
    )
    found = {method: " ".join(operators(result.artifact("edge", method=method))) for method in result.methods}
    assert ("aten.relu.default" in found["first"], "aten.sigmoid.default" in found["first"]) == (True, False)
    assert ("aten.relu.default" in found["second"], "aten.sigmoid.default" in found["second"]) == (False, True)


def test_a_function_of_the_program(lower):
    """What chooses passes by the method and its ATen program gets both."""
    written = {"callable": "own_edge_passes:for_method", "takes_program": True}
    names = " ".join(operators(lower(written, until="edge").artifact("edge")))
    assert "aten.tanh.default" in names
    assert "aten.relu.default" not in names


@pytest.mark.filterwarnings("ignore:This API and all of its related functionality")
def test_an_export_recipes_passes(lower, net, example, store):
    """Functions under `edge_transform_passes` are passes that a recipe names: the same programs, found in the cache."""
    lower({"callable": "own_edge_passes:for_method", "takes_program": True})
    import own_edge_passes

    lowering = LoweringRecipe(partitioners=[XnnpackPartitioner()], edge_transform_passes=[own_edge_passes.for_method])
    recipe = ExportRecipe(name="theirs", lowering_recipe=lowering, strict=False)
    result = pteforge.export(net, example, recipe=recipe, name="passes", store=store, until="partition")
    assert [stage.status for stage in result.stages[1:]] == ["cached", "cached"]
    assert "aten.relu.default" not in " ".join(operators(result.artifact("edge")))


def test_code_is_in_the_key(lower, tmp_path):
    """An edit that means nothing is a hit, another one runs `edge` again, and nothing later if the program is equal."""
    named = {"callable": "own_edge_passes:Replace"}
    lower(named)
    path = tmp_path / "own_edge_passes.py"
    path.write_text(path.read_text().replace("Puts one activation", "# Puts another"))
    assert [stage.status for stage in lower(named).stages] == ["ran", "cached", "cached"]
    path.write_text(path.read_text() + "\nUNUSED = 1\n")
    again = lower(named)
    assert [stage.status for stage in again.stages] == ["ran", "ran", "cached"]
    (edge,) = (stage for stage in again.stages if stage.stage == "edge")
    assert [change.field for change in edge.differs] == ["params.passes"]


def test_without_passes_nothing_changes(lower, exported):
    """An empty list is no list: the edge program is the one of the recipe that names none."""
    assert [stage.status for stage in lower().stages[1:]] == ["cached", "cached"]
    assert operators(lower().artifact("edge")) == operators(exported.artifact("edge"))


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ({"callable": "own_edge_passes:Replce"}, r"recipe.edge.passes\[0\].callable: .*did you mean 'Replace'"),
        ({"callable": "nowhere:Replace"}, "there is no module 'nowhere'"),
    ],
)
def test_a_pass_that_is_not_there(lower, named, problem):
    """It is missed before any work starts, by the field that names it."""
    with pytest.raises(ConfigError, match=problem):
        lower(named)


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        (
            {"callable": "own_edge_passes:Replace", "kwargs": {"to": "tanh"}},
            r"edge.passes\[0\] own_edge_passes:Replace",
        ),
        ({"callable": "own_edge_passes:nothing"}, "gave a float, and not a pass"),
    ],
)
def test_a_pass_that_cannot_be_made(lower, named, problem):
    """Its stage fails, and says which pass it was."""
    with pytest.raises(StageFailed, match=problem) as caught:
        lower(named)
    assert isinstance(caught.value.__cause__, SourceError)
