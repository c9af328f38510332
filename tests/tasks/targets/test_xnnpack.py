"""XNNPACK's options reach its partitioner, and decide on the edge program where they matter for it."""

from __future__ import annotations

import pytest
from pteforge.tasks.targets import find_target


def partitioner(**options):
    """The one partitioner of the target."""
    (made,) = find_target("xnnpack", options).partitioners()
    return made


def test_defaults_are_upstreams():
    """Without options the partitioner is set up as the one that ExecuTorch makes without arguments."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    ours, theirs = partitioner(), XnnpackPartitioner()
    assert isinstance(ours, XnnpackPartitioner)
    assert ours.per_op_mode == theirs.per_op_mode
    precisions = [
        [(type(config), config.enabled_precision_types) for config in each.target_partitioner_configs.values()]
        for each in (ours, theirs)
    ]
    assert precisions[0] == precisions[1]


def test_options_reach_the_partitioner():
    """Each option is the argument that it says it is."""
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType

    assert partitioner(per_operator=True).per_op_mode
    configs = partitioner(precisions=["fp32"]).target_partitioner_configs.values()
    assert configs
    assert all(set(config.enabled_precision_types) <= {ConfigPrecisionType.FP32} for config in configs)
    forced = [
        config.force_non_static_weights_for_f32_linear
        for config in partitioner(force_non_static_weights_for_f32_linear=True).target_partitioner_configs.values()
        if hasattr(config, "force_non_static_weights_for_f32_linear")
    ]
    assert forced
    assert any(forced)


def test_what_is_preserved():
    """`per_operator` groups what matches, and so is not among the options that `edge` depends on; all others are."""
    assert find_target("xnnpack", {"per_operator": True}).preserving() == find_target("xnnpack").preserving()
    for options in ({"precisions": ["fp32"]}, {"force_non_static_weights_for_f32_linear": True}):
        assert find_target("xnnpack", options).preserving() != find_target("xnnpack").preserving()


@pytest.mark.parametrize("per_operator", [False, True])
def test_per_operator_preserves_the_same(per_operator):
    """That claim holds: the partitioner keeps the same operators whole, and checks support by the same rules."""
    import torch

    program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Hardswish()), (torch.ones(2, 3),))
    kept, supported = partitioner(per_operator=per_operator).ops_to_not_decompose(program)
    plain, plainly_supported = partitioner().ops_to_not_decompose(program)
    assert set(kept) == set(plain)
    assert [supported(node) for node in program.graph.nodes] == [
        plainly_supported(node) for node in program.graph.nodes
    ]
