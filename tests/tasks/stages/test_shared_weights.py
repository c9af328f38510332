"""What methods have in common is in a payload once: by a backend that looks at all of them, and by shipped targets."""

import pytest
import torch
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import recipe

METHODS = "builders:readers_and_writers"
FAT = recipe("xnnpack", "portable")
INT4 = {"weight_dtype": "int4", "weight_granularity": {"per_group": 32}}
GROUPED = {"source_transforms": [{"torchao": "int8_dynamic_activation_intx_weight", "params": INT4}]}
STATIC, DYNAMIC = ({"quantize": {"quantizer": "xnnpack", "options": {"dynamic": dynamic}}} for dynamic in (False, True))


@pytest.mark.parametrize(("backend", "copies"), [("FactoringBackend", 1), ("AloneBackend", 2)])
def test_preprocess_multimethod_factors_out_what_methods_share(backend, copies, lower, install_target):
    """The weight that both methods use is in the file once, as named data that two delegates name."""
    install_target({"sharing": "targets:Sharing"})
    asked = recipe({"target": "sharing", "options": {"backend": backend}})
    lowered = lower("builders:scales", asked, until="serialize")
    forward, encode = (
        {tensor.detach().numpy().tobytes() for tensor in lowered.program(step).state_dict.values()}
        for step in ("export", "export/encode")
    )
    content, pte = lowered.file, read_pte(lowered.file)
    assert {content.count(weight) for weight in forward & encode} == {copies}
    assert [content.count(weight) for weight in forward ^ encode] == [1, 1]
    assert {method.name: len(method.delegates) for method in pte.methods} == {"forward": 2, "encode": 2}
    assert len(pte.named_data) == (copies == 1)
    for named in pte.named_data:
        assert content.count(named.key.encode()) == 3  # in the file's table, and in each of the two delegates


@pytest.mark.slow
@pytest.mark.parametrize("targets", [("portable",), ("xnnpack",), ("xnnpack", "portable")], ids="+".join)
def test_two_methods_are_as_large_as_one(targets, lower):
    """All weights shared, both methods together take at most 1.05 of the larger one, and far less than both apart."""

    def size(*methods):
        return len(lower({"builder": METHODS, "kwargs": {"methods": list(methods)}}, recipe(*targets)).file)

    apart = [size("encode"), size("decode")]
    together = size("encode", "decode")
    assert together <= 1.05 * max(apart)
    assert together <= 0.6 * sum(apart)


@pytest.fixture
def lower_wide(lower):
    """Lowers methods with 1.8 million weights in linear layers, quantized in some way, to a fat file."""

    def lowered(how, *methods):
        source = {"builder": METHODS, "kwargs": {"methods": list(methods), "width": 768}}
        return lower(source, {**FAT, **how, "verify": {"min_sqnr_db": 15}})

    return lowered


@pytest.mark.slow
@pytest.mark.parametrize("how", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_an_integer_weight_is_there_once(lower_wide, how):
    """Methods see other values, so their activations have other scales, and still the same integers for weights."""
    lowered = lower_wide(how, "encode", "decode")
    encode, decode = (
        {tensor.numpy().tobytes() for tensor in program.state_dict.values() if tensor.dtype == torch.int8}
        for program in (lowered.program("quantize/encode"), lowered.program("quantize/decode"))
    )
    assert encode == decode
    assert len(encode) == 2
    for content in (*lowered.payloads.values(), lowered.file):
        assert [content.count(weight) for weight in encode] == [1, 1]


@pytest.mark.slow
def test_two_methods_with_groups_are_as_large_as_one(lower_wide):
    """Backends pack int4 weights in groups as they like: both methods take at most 1.05 of the larger one alone."""
    alone, together = lower_wide(GROUPED, "decode"), lower_wide(GROUPED, "encode", "decode")
    for name in ("xnnpack", "portable"):
        assert len(together.payloads[name]) <= 1.05 * len(alone.payloads[name]), name
    assert len(together.file) <= 1.05 * len(alone.file)
