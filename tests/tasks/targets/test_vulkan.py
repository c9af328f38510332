"""Options of Vulkan reach its partitioner and make other payloads; so do those of WebGPU."""

import pytest
from pteforge.errors import TargetError
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.targets import find_target
from pteforge.tasks.targets.vulkan import VulkanOptions

TEXTURES = {"texture_limits_x": 4096, "texture_limits_y": 2048, "texture_limits_z": 1024}
SWITCHES = (
    *("force_fp16", "small_texture_limits", "require_dynamic_shapes", "skip_bool_tensors", "alias_buffer_mutations"),
)
OPTIONS = [
    ({"texture_limits": [*TEXTURES.values()]}, {key: size.to_bytes(4, "little") for key, size in TEXTURES.items()}),
    ({"downcast_64_bit": False}, {"downcast_64_bit": b"\x00"}),
    *(({name: True}, {name: b"\x01"}) for name in SWITCHES),
]


@pytest.mark.parametrize(("options", "specs"), [({}, {}), *OPTIONS])
def test_options_are_compile_specs(options, specs, compile_specs):
    """Each option stands in the payload as ExecuTorch writes it, unless it has upstream's default."""
    assert compile_specs("vulkan", **options) == specs
    assert find_target("vulkan", options).decomposition_options() == {"limits": True}


def test_operators_to_skip_and_to_claim():
    """Named operators are those of the edge dialect, and must exist; by default none is skipped or left out."""
    from executorch.exir.dialects._ops import ops

    (plain,) = find_target("vulkan").partitioners()
    assert (plain.operator_blocklist, plain.operator_allowlist) == (set(), None)
    options = {"skip_operators": ["aten.add.Tensor"], "only_operators": ["aten.mm"]}
    (made,) = find_target("vulkan", options).partitioners()
    assert made.operator_blocklist == {ops.edge.aten.add.Tensor}
    assert made.operator_allowlist == {ops.edge.aten.mm.default}
    with pytest.raises(TargetError, match=r"skip or claim: .*'aten\.adds'"):
        find_target("vulkan", {"skip_operators": ["aten.adds"]}).partitioners()


def test_options():
    """The list above has all options but those that are no compile specs; limits are three positive 32-bit numbers."""
    listed = {option for options, _ in OPTIONS for option in options}
    others = {"skip_operators", "only_operators", "limits"}
    assert listed | others == set(type(find_target("vulkan").options).model_fields)
    for limits in ([4096, 4096], [4096, 4096, 0], [1, 1, 1 << 32]):
        with pytest.raises(TargetError, match="texture_limits"):
            find_target("vulkan", {"texture_limits": limits})


@pytest.mark.slow
def test_options_change_the_payload(lower_for, operators):
    """Weights in fp16 take half, tensors beyond the limits are buffers, and skipped operators run on the CPU."""
    import torch
    from torch import nn

    given = "vulkan", nn.Sequential(nn.Linear(64, 3000), nn.ReLU()), torch.randn(1, 64)
    plain = lower_for(*given)
    assert not operators(plain)
    assert len(lower_for(*given, force_fp16=True)) < 0.6 * len(plain)
    small = lower_for(*given, small_texture_limits=True)
    assert delegates(small) != delegates(plain)
    assert delegates(lower_for(*given, texture_limits=[2048, 2048, 2048])) == delegates(small)
    assert operators(lower_for(*given, skip_operators=["aten.relu.default"])) == {"aten::relu.out"}


def delegates(content: bytes) -> list[bytes]:
    """The content of each delegate, without its compile specs."""
    return [delegate.extent.of(content) for method in read_pte(content).methods for delegate in method.delegates]


def test_options_are_vulkans():
    """It passes Vulkan's options on to its own partitioner; bool tensors are skipped by default.

    Its runtime refuses 16-bit tensors, so it does not take `force_fp16`.
    """
    from executorch.backends.webgpu.partitioner.partitioner import WebGPUPartitioner

    of_vulkan = set(VulkanOptions.model_fields)
    assert set(type(find_target("webgpu").options).model_fields) == of_vulkan - {"force_fp16"}
    with pytest.raises(TargetError, match="force_fp16"):
        find_target("webgpu", {"force_fp16": True})
    for options, expected in (
        ({}, {"skip_bool_tensors": b"\x01"}),
        ({"skip_bool_tensors": False, "small_texture_limits": True}, {"small_texture_limits": b"\x01"}),
    ):
        (partitioner,) = find_target("webgpu", options).partitioners()
        assert isinstance(partitioner, WebGPUPartitioner)
        specs = partitioner._vulkan_partitioner.delegation_spec.compile_specs
        assert {spec.key: spec.value for spec in specs} == expected


@pytest.mark.slow
def test_payload_is_vulkans(lower_for):
    """With the same options the two compile to the same bytes."""
    import torch

    given = torch.nn.Linear(8, 4), torch.ones(1, 8)
    assert lower_for("webgpu", *given) == lower_for("vulkan", *given, skip_bool_tensors=True)
