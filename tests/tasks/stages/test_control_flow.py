"""Control flow goes through all stages: stored, partitioned inside of branches, run on inputs for each of them."""

import pytest
import torch
from pteforge.errors import SourceError
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import PORTABLE, XNNPACK, recipe

WEIGHTS_AS_INPUTS = recipe({"target": "xnnpack", "options": {"force_non_static_weights_for_f32_linear": True}})


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [PORTABLE, XNNPACK], ids=["portable", "xnnpack"])
@pytest.mark.parametrize(("builder", "examples"), [("branches", 2), ("nested_branches", 3), ("rows", 1), ("sums", 1)])
def test_control_flow_is_lowered(builder, examples, recipe, lower):
    """`cond`, also nested, `map` and `scan` run on the runtime as in eager, whichever way an input goes."""
    lowered = lower(f"builders:{builder}", recipe)
    labels = {case["label"] for case in lowered.json("verify", "figures")["cases"]}
    (method,) = read_pte(lowered.file).methods
    assert {f"example {number}" for number in range(examples)} <= labels
    assert bool(method.delegates) is (recipe is XNNPACK)
    if builder == "branches":
        assert any("addmm" in operator for operator in method.operators)


def test_partitions_inside_of_branches(lower):
    """XNNPACK takes what it can in each branch; layers whose weights are inputs there only if the recipe says so."""
    from pteforge.tasks.lower.graphs import lowered_modules

    lowered = lower("builders:branches", WEIGHTS_AS_INPUTS)
    program = lowered.program("partition/forward")
    owners = [owner is program.graph_module for owner, _, _ in lowered_modules(program)]
    assert sorted(owners) == [False, False, True]  # a branch each, and the layer before
    (method,) = read_pte(lowered.file).methods
    assert len(method.delegates) == 3
    assert not any("addmm" in operator or "linear" in operator for operator in method.operators)


def test_loops_are_refused(lower):
    """ExecuTorch emits no `while_loop`; the error says so and what to do instead. When it does, this fails."""
    with pytest.raises(SourceError, match="method 'forward' has a while_loop, which executorch does not emit"):
        lower("faulty:loop", PORTABLE)
    import faulty
    from executorch.exir import to_edge_transform_and_lower

    manager = to_edge_transform_and_lower(torch.export.export(*faulty.loop()))
    with pytest.raises(Exception, match="Unsupported control flow operator: while_loop"):
        manager.to_executorch()
