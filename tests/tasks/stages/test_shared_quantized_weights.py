"""Each method is quantized by itself; the weights that methods share are one again in every payload and in the file."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

_STATIC = {"quantize": {"quantizer": "xnnpack"}}
_DYNAMIC = {"quantize": {"quantizer": "xnnpack", "options": {"dynamic": True}}}
_INT4 = {"weight_dtype": "int4", "weight_granularity": {"per_group": 32}}
_GROUPED = {"source_transforms": [{"torchao": "int8_dynamic_activation_intx_weight", "params": _INT4}]}

_FAT = {"output": {"form": "fat"}, "specializations": [{"target": "xnnpack"}, {"target": "portable"}]}


@pytest.fixture
def lower(stages):
    """Lowers methods of `method_models:readers_and_writers`, 1.8 million weights in linear layers, to a fat file."""

    def lower(how, *methods):
        source = {"builder": "method_models:readers_and_writers", "kwargs": {"methods": list(methods), "width": 768}}
        return stages.lower(source, {**_FAT, **how, "verify": {"min_sqnr_db": 15}})

    return lower


@pytest.mark.parametrize("how", [_STATIC, _DYNAMIC], ids=["static", "dynamic"])
def test_an_integer_weight_is_there_once(lower, stages, how):
    """Methods see other values, so their activations have other scales, and still the same integers for weights.

    XNNPACK's payload, the fallback and the file that has both hold them once.
    """
    import torch

    made = lower(how, "encode", "decode")
    programs = [stages.program(made.outputs[f"quantize/{method}/tested"]["program"]) for method in made.plan.methods]
    encode, decode = (
        {tensor.numpy().tobytes() for tensor in program.state_dict.values() if tensor.dtype == torch.int8}
        for program in programs
    )
    assert encode == decode
    assert len(encode) == 2
    for content in (made.payloads["xnnpack"], made.payloads["portable"], made.file):
        assert [content.count(weight) for weight in encode] == [1, 1]


def test_two_methods_with_groups_are_as_large_as_one(lower):
    """Backends pack int4 weights in groups as they like: both methods take at most 1.05 of the larger one alone.

    XNNPACK's payload does, the fallback, and the file that has both.
    """
    alone, together = lower(_GROUPED, "decode"), lower(_GROUPED, "encode", "decode")
    for name in ("xnnpack", "portable"):
        assert len(together.payloads[name]) <= 1.05 * len(alone.payloads[name]), name
    assert len(together.file) <= 1.05 * len(alone.file)
