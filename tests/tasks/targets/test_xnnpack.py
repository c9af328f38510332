"""XNNPACK's options reach its partitioner and quantizer, and decide on the edge program where they matter for it."""

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.targets import TargetParams, find_target
from pteforge.tasks.targets.find import find_quantizer_options


def partitioner(**options):
    (made,) = find_target("xnnpack", options).partitioners()
    return made


def test_options_reach_the_partitioner():
    """Each option is the argument that it says it is; without any the partitioner is what ExecuTorch makes."""
    from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    def precisions(made):
        return [(name, found.enabled_precision_types) for name, found in made.target_partitioner_configs.items()]

    ours, theirs = partitioner(), XnnpackPartitioner()
    assert isinstance(ours, XnnpackPartitioner)
    assert (ours.per_op_mode, precisions(ours)) == (theirs.per_op_mode, precisions(theirs))
    for name, config in ours.target_partitioner_configs.items():
        assert isinstance(config, type(theirs.target_partitioner_configs[name]))
    assert partitioner(per_operator=True).per_op_mode
    fp32 = precisions(partitioner(precisions=["fp32"]))
    assert fp32
    assert all(set(enabled) <= {ConfigPrecisionType.FP32} for _, enabled in fp32)
    name = "force_non_static_weights_for_f32_linear"
    assert any(getattr(config, name, 0) for config in partitioner(**{name: True}).target_partitioner_configs.values())


def test_what_is_preserved():
    """`per_operator` groups what matches, and so is not among the options that `edge` depends on; all others are."""
    import torch

    plain = find_target("xnnpack").decomposition_options()
    assert find_target("xnnpack", {"per_operator": True}).decomposition_options() == plain
    for options in ({"precisions": ["fp32"]}, {"force_non_static_weights_for_f32_linear": True}):
        assert find_target("xnnpack", options).decomposition_options() != plain
    program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Hardswish()), (torch.ones(2, 3),))
    (kept, supported), (plainly_kept, plainly_supported) = (
        partitioner(per_operator=per_operator).ops_to_not_decompose(program) for per_operator in (True, False)
    )
    assert set(kept) == set(plainly_kept)
    for node in program.graph.nodes:
        assert supported(node) == plainly_supported(node)


@pytest.mark.parametrize(
    ("options", "least", "largest"),
    [
        ({}, 1, 100),
        ({"ranges": "min_max"}, 98, 100),
        ({"ranges": "moving_average"}, 10, 13),
        ({"ranges": "min_max", "symmetric": True}, 98, 100),
        ({"ranges": "percentile", "percentile": 90.0}, 0.85, 0.95),
        ({"ranges": "percentile", "percentile": 100.0}, 98, 100),
        ({"only_rules": True, "rules": [{"module": "1", "ranges": "min_max"}]}, 98, 100),
    ],
)
def test_ranges(options, least, largest):
    """Samples are even from -1 to 1, and the last one has an outlier of 99: the largest value that is not clamped."""
    import torch
    from pteforge.tasks.quantize.pt2e import quantize

    network = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(1000, 4)).eval()
    samples = [[torch.linspace(-1, 1, 1000)[None]] for _ in range(8)]
    samples[-1][0][0, -1] = 99
    program = torch.export.export(network, (samples[0][0],))
    options = find_quantizer_options("xnnpack", options).model_dump(mode="json")  # as a stage gets them
    quantized, *_ = quantize(program, samples[0], samples, (TargetParams(name="xnnpack", options=options),))
    first = next(node for node in quantized.graph.nodes if "quantize_per_tensor" in str(node.target))
    _, scale, zero, _, most, _ = first.args
    assert least < scale * (most - zero) < largest
    assert (zero == 0) == options["symmetric"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"ranges": "min_max", "dynamic": True}, "`ranges` is for fixed scales"),
        ({"percentile": 99.0}, "is for `ranges: percentile`"),
        ({"ranges": "percentile", "percentile": 101}, "percentile"),
        ({"symmetric": True, "dynamic": True}, "`symmetric` is for fixed scales"),
        ({"ranges": "kl"}, "ranges"),
    ],
)
def test_wrong_ranges(options, problem):
    """They are refused with the field, before any work."""
    with pytest.raises(TargetError) as refused:
        find_quantizer_options("xnnpack", options)
    assert problem in str(refused.value)
