"""Sources with other interfaces than tensors in, tensors out: lowered and verified by all stages."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_program_files_lower(target, stages, tmp_path):
    """A `.pt2` file goes all the way; keyword inputs reach the runtime in the order in which it takes them."""
    import torch

    class Scale(torch.nn.Module):
        """Takes keywords, in another order than they are given."""

        def forward(self, values, *, factor, shift):
            """Any computation where the order matters."""
            return values * factor - shift

    keywords = {"shift": torch.full((2,), 1.0), "factor": torch.full((2,), 3.0)}
    torch.export.save(torch.export.export(Scale(), (torch.ones(2),), keywords), tmp_path / "scale.pt2")
    lowered = stages.lower(str(tmp_path / "scale.pt2"), {"specializations": [{"target": target}]})
    assert lowered.provenance["verification"]["figures"]["overall"]["cases"] == 3


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
@pytest.mark.parametrize(
    ("builder", "outputs"),
    [("mixed_inputs", 2), ("mixed_outputs", 5), ("optional_input", 1), ("size_output", 2), ("other_types", 3)],
)
def test_unusual_inputs_and_outputs_lower(builder, outputs, target, stages):
    """Numbers, None, nested structures and other element types reach the runtime, and come back as eager gives them."""
    lowered = stages.lower(f"sources:{builder}", {"specializations": [{"target": target}]})
    assert lowered.provenance["verification"]["figures"]["overall"]["cases"] == 3 * outputs


@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_state_lowers(target, stages):
    """State that does not start at zero is in the file, and each verified case starts from it."""
    lowered = stages.lower("sources:hands_out_state", {"specializations": [{"target": target}]})
    assert lowered.provenance["verification"]["figures"]["overall"]["max_abs_error"] == 0
