"""Vulkan's options reach its partitioner, and make other payloads."""

from __future__ import annotations

import pytest
from pteforge.artifacts.pte.reader import read_pte
from pteforge.errors import TargetError
from pteforge.tasks.targets import find_target

OPTIONS = [
    ({"force_fp16": True}, {"force_fp16": b"\x01"}),
    (
        {"texture_limits": [4096, 2048, 1024]},
        {
            "texture_limits_x": (4096).to_bytes(4, "little"),
            "texture_limits_y": (2048).to_bytes(4, "little"),
            "texture_limits_z": (1024).to_bytes(4, "little"),
        },
    ),
    ({"small_texture_limits": True}, {"small_texture_limits": b"\x01"}),
    ({"require_dynamic_shapes": True}, {"require_dynamic_shapes": b"\x01"}),
    ({"skip_bool_tensors": True}, {"skip_bool_tensors": b"\x01"}),
    ({"downcast_64_bit": False}, {"downcast_64_bit": b"\x00"}),
    ({"alias_buffer_mutations": True}, {"alias_buffer_mutations": b"\x01"}),
]


@pytest.mark.parametrize(("options", "specs"), [({}, {}), *OPTIONS])
def test_options_are_compile_specs(options, specs, compile_specs):
    """Each option stands in the payload as ExecuTorch writes it, and none that is as upstream has it."""
    assert compile_specs("vulkan", **options) == specs


def test_every_option_is_tested():
    """The list above has all of them but those that are no compile specs."""
    listed = {option for options, _ in OPTIONS for option in options}
    assert {*listed, "skip_operators", "only_operators"} == set(type(find_target("vulkan").options).model_fields)


def test_operators_to_skip_and_to_claim():
    """Named operators are those of the edge dialect; nothing is skipped, and nothing left out, by default."""
    from executorch.exir.dialects._ops import ops

    (plain,) = find_target("vulkan").partitioners()
    assert (plain.operator_blocklist, plain.operator_allowlist) == (set(), None)
    (made,) = find_target(
        "vulkan", {"skip_operators": ["aten.add.Tensor"], "only_operators": ["aten.mm"]}
    ).partitioners()
    assert made.operator_blocklist == {ops.edge.aten.add.Tensor}
    assert made.operator_allowlist == {ops.edge.aten.mm.default}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"texture_limits": [4096, 4096]}, "texture_limits"),
        ({"texture_limits": [4096, 4096, 0]}, "texture_limits"),
        ({"texture_limits": [1, 1, 1 << 32]}, "texture_limits"),
    ],
)
def test_values_out_of_range(options, problem):
    """Limits are three positive 32-bit numbers."""
    with pytest.raises(TargetError, match=problem):
        find_target("vulkan", options)


def test_nothing_changes_what_is_preserved():
    """All recipes for Vulkan share their edge programs, whatever their options are."""
    for options, _ in OPTIONS:
        assert find_target("vulkan", options).preserving() == find_target("vulkan").preserving() == {}


def test_skipped_operators_must_exist():
    """An operator that there is not is told."""
    with pytest.raises(TargetError, match=r"unknown operator 'aten\.adds' to skip or claim"):
        find_target("vulkan", {"skip_operators": ["aten.adds"]}).partitioners()


@pytest.mark.slow
def test_options_change_the_payload(lower, operators):
    """Weights in fp16 take half, tensors beyond the limits are buffers, and skipped operators run on the CPU."""
    import torch
    from torch import nn

    module, inputs = nn.Sequential(nn.Linear(64, 3000), nn.ReLU()), (torch.randn(1, 64),)
    plain = lower("vulkan", module, inputs)
    assert not operators(plain)
    assert len(lower("vulkan", module, inputs, force_fp16=True)) < 0.6 * len(plain)
    small = lower("vulkan", module, inputs, small_texture_limits=True)
    assert delegates(small) != delegates(plain)
    assert delegates(lower("vulkan", module, inputs, texture_limits=[2048, 2048, 2048])) == delegates(small)
    assert operators(lower("vulkan", module, inputs, skip_operators=["aten.relu.default"])) == {"aten::relu.out"}


def delegates(content: bytes) -> list[bytes]:
    """What the file gives to its delegates, without the compile specs."""
    file = read_pte(content)
    found = []
    for method in file.methods:
        for delegate in method.delegates:
            start = delegate.offset
            if delegate.segment is not None:
                start = file.segments[delegate.segment].offset
            found.append(content[start : start + delegate.size])
    return found
