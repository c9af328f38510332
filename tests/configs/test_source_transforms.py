"""source_transforms as recipes write them."""

from __future__ import annotations

import pytest
from pteforge.configs.source_transforms import CallableTransform, TorchaoTransform
from pteforge.errors import ConfigError

ZOO = "version: 1\nmodels: {net: {source: 'p:net', recipes: [mine]}}\nrecipes:\n  mine:\n    extends: portable-fp32\n"


def test_both_kinds(load):
    """A list may have both kinds; one pattern stands for a list of one; files lie beside the file that names them."""
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


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{filter: a}", r"6:25: .*source_transforms\[0\]: must be a mapping with either `torchao`.* or `callable`"),
        ("{torchao: a, callable: 'p:q'}", r"source_transforms\[0\]: must be a mapping with either"),
        ("{torchao: a, param: {}}", r"unknown key 'param'; did you mean 'params'"),
        ("{torchao: a, filter: []}", r"source_transforms\[0\].filter: is empty; leave it out to take every layer"),
        (
            "{torchao: a, layers: [conv]}",
            r"source_transforms\[0\].layers\[0\]: Input should be 'linear' or 'embedding'",
        ),
        ("{callable: p.q}", r"source_transforms\[0\].callable: 'p.q' is neither"),
    ],
)
def test_mistakes(load, written, message):
    """What cannot be is told with its place."""
    with pytest.raises(ConfigError, match=message):
        load(ZOO + f"    source_transforms: [{written}]\n")
