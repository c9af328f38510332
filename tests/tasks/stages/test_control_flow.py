"""Control flow goes through all stages: stored, partitioned inside of branches, run on inputs for each of them."""

from __future__ import annotations

import json

import pytest
from pteforge.artifacts.pte.reader import read_pte
from pteforge.errors import SourceError

PORTABLE = {"specializations": [{"target": "portable"}]}
XNNPACK = {"specializations": [{"target": "xnnpack"}]}
WEIGHTS_AS_INPUTS = {
    "specializations": [{"target": "xnnpack", "options": {"force_non_static_weights_for_f32_linear": True}}]
}


@pytest.fixture
def lowered(stages):
    """The file of a model of this zoo, verified, and the labels of what it was verified on."""

    def lower(builder, recipe):
        made = stages.lower(f"control_flow_models:{builder}", recipe)
        figures = json.loads(stages.store.read_artifact(made.outputs["verify/tested"]["figures"]))
        return read_pte(made.file), {case["label"] for case in figures["cases"]}, made

    return lower


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [PORTABLE, XNNPACK], ids=["portable", "xnnpack"])
@pytest.mark.parametrize(("builder", "examples"), [("branches", 2), ("nested", 3), ("rows", 1), ("sums", 1)])
def test_control_flow_is_lowered(builder, examples, recipe, lowered):
    """`cond`, also nested, `map` and `scan` run on the runtime as in eager, whichever way an input goes."""
    pte, labels, _ = lowered(builder, recipe)
    assert {f"example {number}" for number in range(examples)} <= labels
    assert bool(pte.methods[0].delegates) is (recipe is XNNPACK)


def test_partitions_inside_of_branches(lowered, stages):
    """XNNPACK takes what it can in each branch; layers whose weights come in from outside only where that is asked."""
    from pteforge.tasks.stages.lowered import lowered_modules

    pte, _, made = lowered("branches", WEIGHTS_AS_INPUTS)
    program = stages.program(made.outputs["partition/forward/tested"]["program"])
    owners = [owner is program.graph_module for owner, _, _ in lowered_modules(program)]
    assert sorted(owners) == [False, False, True]  # a branch each, and the layer before
    assert len(pte.methods[0].delegates) == 3
    assert not any("addmm" in operator or "linear" in operator for operator in pte.methods[0].operators)


@pytest.mark.slow
def test_layers_in_branches_run_by_portable_kernels(lowered):
    """Without that option XNNPACK wants weights as constants, so a branch's layers are decomposed for other kernels."""
    pte, _, _ = lowered("branches", XNNPACK)
    assert any("addmm" in operator for operator in pte.methods[0].operators)


def test_loops_are_refused(stages):
    """ExecuTorch emits no `while_loop`; the error says so and what to do instead."""
    with pytest.raises(SourceError, match="method 'forward' has a while_loop, which executorch does not emit"):
        stages.lower("control_flow_models:loop", PORTABLE)


def test_upstream_does_not_emit_loops():
    """When it does, this fails, and our refusal can go."""
    import torch
    from executorch.exir import to_edge_transform_and_lower
    from torch._higher_order_ops import while_loop

    class Loop(torch.nn.Module):
        def forward(self, count):
            return while_loop(lambda n: n < 5, lambda n: (n + 1,), (count,))

    manager = to_edge_transform_and_lower(torch.export.export(Loop(), (torch.tensor(0),)))
    with pytest.raises(Exception, match="Unsupported control flow operator: while_loop"):
        manager.to_executorch()
