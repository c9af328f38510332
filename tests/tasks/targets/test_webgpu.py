"""WebGPU is Vulkan's compiler with another partitioner."""

import pytest
from pteforge.tasks.targets import find_target
from pteforge.tasks.targets.vulkan import VulkanOptions


def test_options_are_vulkans():
    """It takes Vulkan's options and passes them on to its own partitioner; bool tensors are skipped by default."""
    from executorch.backends.webgpu.partitioner.partitioner import WebGPUPartitioner

    assert set(type(find_target("webgpu").options).model_fields) == set(VulkanOptions.model_fields)
    for options, expected in (
        ({}, {"skip_bool_tensors": b"\x01"}),
        ({"skip_bool_tensors": False, "force_fp16": True}, {"force_fp16": b"\x01"}),
    ):
        (partitioner,) = find_target("webgpu", options).partitioners()
        assert type(partitioner) is WebGPUPartitioner
        specs = partitioner._vulkan_partitioner.delegation_spec.compile_specs
        assert {spec.key: spec.value for spec in specs} == expected


@pytest.mark.slow
def test_payload_is_vulkans(lower_for):
    """With the same options the two compile to the same bytes."""
    import torch

    given = torch.nn.Linear(8, 4), torch.ones(1, 8)
    assert lower_for("webgpu", *given) == lower_for("vulkan", *given, skip_bool_tensors=True)
