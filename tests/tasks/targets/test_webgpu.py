"""WebGPU is Vulkan's compiler with another partitioner."""

from __future__ import annotations

import pytest
from pteforge.tasks.targets import find_target
from pteforge.tasks.targets.vulkan import VulkanOptions


def vulkan_specs(**options):
    """The compile specs of the Vulkan partitioner within the WebGPU partitioner."""
    (partitioner,) = find_target("webgpu", options).partitioners()
    return {spec.key: spec.value for spec in partitioner._vulkan_partitioner.delegation_spec.compile_specs}


def test_is_upstreams_partitioner():
    """It is WebGPU's own."""
    from executorch.backends.webgpu.partitioner.partitioner import WebGPUPartitioner

    (partitioner,) = find_target("webgpu").partitioners()
    assert type(partitioner) is WebGPUPartitioner


def test_options_are_vulkans():
    """It takes what Vulkan takes and hands it on; bool tensors are skipped unless one wants them."""
    assert set(type(find_target("webgpu").options).model_fields) == set(VulkanOptions.model_fields)
    assert vulkan_specs() == {"skip_bool_tensors": b"\x01"}
    assert vulkan_specs(skip_bool_tensors=False, force_fp16=True) == {"force_fp16": b"\x01"}


def test_shares_nothing_with_vulkan():
    """They are two targets, also where their options are equal."""
    options = {"skip_bool_tensors": True}
    assert find_target("webgpu", options) != find_target("vulkan", options)


@pytest.mark.slow
def test_payload_is_vulkans(lower):
    """With the same options the two compile to the same bytes."""
    import torch

    module, inputs = torch.nn.Linear(8, 4), (torch.ones(1, 8),)
    assert lower("webgpu", module, inputs) == lower("vulkan", module, inputs, skip_bool_tensors=True)
