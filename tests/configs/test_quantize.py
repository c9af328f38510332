"""Quantizers of a recipe, and its transforms of modules."""

import pytest
from pteforge.configs import Quantize, QuantizerChoice
from pteforge.configs.quantize import CallableTransform, TorchaoTransform
from pteforge.errors import ConfigError

ONE = QuantizerChoice(quantizer="xnnpack", options={"dynamic": True})
OTHER = QuantizerChoice(quantizer="vulkan")
TRANSFORMS = "source_transforms"
ZOO = "version: 1\nmodels: {net: {source: 'p:net', recipes: [mine]}}\nrecipes:\n  mine:\n    extends: portable-fp32\n"


@pytest.mark.parametrize(
    ("written", "chosen"),
    [
        ({}, (QuantizerChoice(quantizer="xnnpack"),)),
        ({"quantizer": "vulkan"}, (OTHER,)),
        (ONE.model_dump(exclude_unset=True), (ONE,)),
        ({"quantizers": [ONE.model_dump()]}, (ONE,)),
        ({"quantizers": [{"quantizer": "vulkan"}, ONE.model_dump()]}, (OTHER, ONE)),
    ],
)
def test_both_forms(written, chosen):
    """One quantizer is written by itself or as a list of one, several as a list, and the order is kept."""
    assert Quantize.model_validate(written).chosen == chosen


def test_both_kinds_of_transforms(load):
    """A list may have both kinds; one pattern stands for a list of one; paths are relative to their file."""
    loaded = load(
        ZOO + "    source_transforms:\n"
        "      - {torchao: int8_weight_only, filter: encoder.*, exclude: [a, b]}\n"
        "      - {callable: 'p.q:fold', kwargs: {deep: true}, files: [scales.txt]}\n"
    )
    first, second = loaded.zoo.recipes["mine"].source_transforms
    assert first == TorchaoTransform(torchao="int8_weight_only", filter=("encoder.*",), exclude=("a", "b"))
    assert second == CallableTransform(
        callable="p.q:fold", kwargs={"deep": True}, files=(loaded.files[0].parent / "scales.txt",)
    )
    assert (first.layers, TorchaoTransform(torchao="x").filter) == (("linear",), ("*",))


LIST = "quantizers: [{quantizer: xnnpack}]"


@pytest.mark.parametrize(
    ("field", "written", "message"),
    [
        ("quantize", f"{{quantizer: xnnpack, {LIST}}}", "6:5: recipes.mine.quantize: has `quantizers` as well as"),
        ("quantize", f"{{options: {{dynamic: true}}, {LIST}}}", "6:5: recipes.mine.quantize: has `quantizers` as well"),
        (
            TRANSFORMS,
            "[{filter: a}]",
            rf"6:25: .*{TRANSFORMS}\[0\]: must be a mapping with either `torchao`.* or `call",
        ),
        (TRANSFORMS, "[{torchao: a, callable: 'p:q'}]", rf"{TRANSFORMS}\[0\]: must be a mapping with either"),
        (TRANSFORMS, "[{torchao: a, param: {}}]", r"unknown key 'param'; did you mean 'params'"),
        (TRANSFORMS, "[{torchao: a, filter: []}]", rf"{TRANSFORMS}\[0\].filter: is empty; leave it out to take every"),
        (TRANSFORMS, "[{torchao: a, layers: [conv]}]", r"\[0\].layers\[0\]: Input should be 'linear' or 'embedding'"),
        (TRANSFORMS, "[{callable: p.q}]", rf"{TRANSFORMS}\[0\].callable: 'p.q' is neither"),
    ],
)
def test_mistakes(load, field, written, message):
    """A mistake is reported with its place; a list of quantizers and a single one contradict each other."""
    with pytest.raises(ConfigError, match=message):
        load(f"{ZOO}    {field}: {written}\n")
