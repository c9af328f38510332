"""How a recipe names its quantizers: one, or several in order."""

from __future__ import annotations

import pytest
from pteforge.configs import Quantize, QuantizerChoice

ONE = QuantizerChoice(quantizer="xnnpack", options={"dynamic": True})
OTHER = QuantizerChoice(quantizer="vulkan")


@pytest.mark.parametrize(
    ("written", "chosen"),
    [
        ({}, (QuantizerChoice(quantizer="xnnpack"),)),
        ({"quantizer": "vulkan"}, (OTHER,)),
        ({"quantizer": "xnnpack", "options": {"dynamic": True}}, (ONE,)),
        ({"quantizers": [{"quantizer": "xnnpack", "options": {"dynamic": True}}]}, (ONE,)),
        (
            {"quantizers": [{"quantizer": "vulkan"}, {"quantizer": "xnnpack", "options": {"dynamic": True}}]},
            (OTHER, ONE),
        ),
    ],
)
def test_both_forms(written, chosen):
    """One quantizer is written by itself or as a list of one, several as a list, and the order is kept."""
    assert Quantize.model_validate(written).chosen == chosen


@pytest.mark.parametrize("beside", ["quantizer: xnnpack", "options: {dynamic: true}"])
def test_not_both_at_once(failure, beside):
    """A list of quantizers beside a single one says neither, and is refused where it stands."""
    error = failure(
        f"""\
        version: 1
        models: {{net: {{source: "p:net", recipes: [mine]}}}}
        recipes:
          mine:
            specializations: [{{target: xnnpack}}]
            quantize:
              {beside}
              quantizers: [{{quantizer: xnnpack}}]
        """
    )
    assert "zoo.yaml:6:5: recipes.mine.quantize: has `quantizers` beside" in str(error)
