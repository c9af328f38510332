"""Bounds of dynamic sizes: those that a model was exported with are those of its file."""

from __future__ import annotations

import pytest
from pteforge.artifacts.pte.reader import read_pte


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_a_file_takes_the_largest_size(stages, target):
    """The file is verified at both bounds, and plans memory for the upper one, whatever the example's size is."""
    lowered = stages.lower("dynamic_models:batches", {"specializations": [{"target": target}]})

    (method,) = read_pte(lowered.file).methods
    assert method.inputs[0].shape == (64, 3, 8, 8)
    sizes = [flat[0].shape[0] for flat in stages.value(lowered.outputs["export"]["examples"])["inputs"]]
    assert sizes == [2, 1, 64]


def test_what_is_asked_of_a_size_is_no_fact_about_it():
    """Inside, a comparison leaves bounds alone, but those of sizes that depend on data; afterwards torch narrows."""
    import torch
    from pteforge.tasks.stages.size_bounds import declared_bounds
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    env = ShapeEnv()
    symbol = env.create_symbol(4, ConstantSource("size"), dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    size = env.create_symintnode(symbol, hint=4)
    unbacked = env.create_unbacked_symint()
    with declared_bounds():
        assert size < 16
        torch._check(unbacked < 8)
    assert env.var_to_range[symbol].upper > 16
    assert env.var_to_range[unbacked.node.expr].upper == 7
    assert size < 32
    assert env.var_to_range[symbol].upper == 31
