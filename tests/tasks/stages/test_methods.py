"""Methods of one payload that are lowered differently: what a recipe says of one changes that one, in the file."""

from __future__ import annotations

import pytest
from pteforge.artifacts.pte.reader import read_pte

pytestmark = pytest.mark.slow


@pytest.fixture
def methods(stages):
    """Methods of the file of a model of two, by name, given what the recipe says of them."""

    def lowered(builder, target, **differing):
        recipe = {"specializations": [{"target": target, "methods": differing}]}
        pte = read_pte(stages.lower(f"method_models:{builder}", recipe).file)
        return {method.name: method for method in pte.methods}

    return lowered


def test_a_method_without_partitioner(methods):
    """It passes through untouched: the portable kernels run all of it, while the others are delegated."""
    made = methods("sequential", "xnnpack", decode={"delegate": False})
    assert len(made["encode"].delegates) == 2
    assert not made["decode"].delegates


def test_a_method_with_a_target_of_its_own(methods):
    """Another target's partitioners may see one method of a payload, also of one that delegates nothing else."""
    made = methods("sequential", "portable", decode={"target": "xnnpack"})
    assert not made["encode"].delegates
    assert [delegate.id for delegate in made["decode"].delegates] == ["XnnpackBackend"] * 2


def test_a_method_with_options_of_its_own(methods):
    """The target is the same, and its options differ for one method."""
    made = methods("sequential", "xnnpack", decode={"options": {"per_operator": True}})
    assert len(made["encode"].delegates) == 2
    assert len(made["decode"].delegates) == 3


def test_a_method_with_an_edge_config_of_its_own(methods):
    """An operator is kept whole in the method that says so, and the file runs."""
    made = methods("shuffles", "portable", two={"edge": {"preserve_operators": ["aten.pixel_shuffle.default"]}})
    keeps = {name: "aten::pixel_shuffle" in str(method.operators) for name, method in made.items()}
    assert keeps == {"one": False, "two": True}


def test_a_method_with_memory_of_its_own(methods):
    """Without memory for its inputs and outputs its plan is smaller; the other's is what it was."""
    usual = methods("shuffles", "portable")
    made = methods("shuffles", "portable", two={"alloc_graph_input": False, "alloc_graph_output": False})
    assert made["one"].planned_memory == usual["one"].planned_memory
    assert sum(made["two"].planned_memory) < sum(usual["two"].planned_memory)
