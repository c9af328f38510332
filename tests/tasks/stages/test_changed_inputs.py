"""Models that write to their inputs."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_inputs_come_back_changed(target, stages):
    """The file gives the inputs that are written to before its outputs, in their order; it is verified like that."""
    import torch
    from executorch.runtime import Runtime

    lowered = stages.lower("dynamic_models:writes_to_inputs", {"specializations": [{"target": target}]})
    stored = stages.value(lowered.outputs["export"]["examples"])
    first, x, second = stored["inputs"][0]
    given = [tensor.clone() for tensor in (first, x, second)]
    outputs = Runtime.get().load_program(lowered.file).load_method("forward").execute(given)
    assert all(torch.equal(one, other) for one, other in zip(given, (first, x, second), strict=True))
    for output, expected in zip(outputs, stored["outputs"][0], strict=True):
        torch.testing.assert_close(output, expected)
    assert not torch.equal(outputs[0], first)
    assert torch.equal(outputs[1][:, 2:], second[:, 2:])
    assert not torch.equal(outputs[1], second)


def test_programs_on_the_way_give_them_too(stages):
    """Every rung of the ladder has the same outputs to compare."""
    recipe = {"specializations": [{"target": "portable"}], "verify": {"ladder": True}}
    lowered = stages.lower("dynamic_models:writes_to_inputs", recipe)
    rungs = lowered.provenance["numerics"]
    assert {rung["name"] for rung in rungs} == {"exported", "edge", "payload"}
    assert all(rung["figures"] for rung in rungs), rungs
