"""Calibration data that is passed with the model."""

from __future__ import annotations

import gc
import importlib
import weakref

import pteforge
import pytest
import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.export import ExportRecipe, QuantizationRecipe
from pteforge.configs import Dataset
from pteforge.errors import InputError, SourceError
from pteforge.tests.lowering import checked_recipe

RECIPE = "xnnpack-int8-static"
OTHERS_ONLY = checked_recipe("xnnpack", quantize={"methods": ["encode"]})


@pytest.fixture
def quantize(net, example, store):
    """Lowers the network up to `quantize`."""

    def quantized(calibration=None, **more):
        call = {"recipe": RECIPE, "until": "quantize", "store": store, **more}
        return pteforge.export(net, example, calibration=calibration, **call)

    return quantized


@pytest.fixture
def ramps():
    """Samples of the network, made one at a time."""
    return importlib.import_module("callables").ramps


def graph(result):
    """The quantized program, scales included."""
    return str(result.artifact("quantize").graph)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This API and all of its related functionality")
def test_an_export_recipes_inputs(quantize, ramps):
    """Samples come from the function of an ExportRecipe, unless the caller passes others."""
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    quantization = QuantizationRecipe(quantizers=[quantizer], calibration_inputs_fn=ramps)
    recipe = ExportRecipe(name="theirs", quantization_recipe=quantization, strict=False)
    given = quantize(ramps())
    assert graph(quantize(recipe=recipe)) == graph(given)
    assert graph(quantize(ramps(4), recipe=recipe)) == graph(quantize(ramps(4))) != graph(given)


@pytest.mark.slow
def test_content_is_what_counts(quantize, ramps, ran):
    """A list, a generator and the name of a dataset with equal samples are equal work; other samples are not."""
    given = quantize(ramps())
    assert "calibration" in ran(given)
    assert graph(given) != graph(quantize())
    stored = list(given.artifact("calibration"))
    assert torch.equal(stored[2][0], list(ramps())[2][0])
    for calibration in (list(ramps()), {"forward": ramps()}, "callables:ramps", Dataset(dataset="callables:ramps")):
        result = quantize(calibration)
        assert graph(result) == graph(given)
        assert "quantize" not in ran(result)
    other = quantize(ramps(2))
    assert "quantize" in ran(other)
    assert graph(other) != graph(given)


def test_one_sample(quantize, example):
    """A tuple is one sample, as it is one example; a tensor in a list is the only input."""
    assert graph(quantize(example)) == graph(quantize([example[0]])) == graph(quantize())


@pytest.mark.slow
def test_never_all_in_memory(quantize, ramps):
    """Samples are read one at a time: no sample is alive when the next but one is made."""

    def watched():
        earlier = []
        for (sample,) in ramps(6):
            gc.collect()
            assert all(sample() is None for sample in earlier[:-1])
            earlier.append(weakref.ref(sample))
            yield (sample,)
            del sample

    assert len(list(quantize(watched()).artifact("calibration"))) == 6


@pytest.mark.parametrize(
    ("given", "more", "problem"),
    [
        ([], {"recipe": "xnnpack-fp32"}, "calibration is given, but the recipe 'xnnpack-fp32' has no `quantize`"),
        ([], {"recipe": OTHERS_ONLY}, "calibration of method 'forward': the recipe '.*-own' does not quantize it"),
        ({"encode": []}, {}, r"calibration names the methods \['encode'\]; the model has \['forward'\]"),
        (3, {}, "calibration of method 'forward' is a int; give a tuple of positional inputs"),
        ("nowhere:samples", {}, "calibration of method 'forward': builder 'nowhere:samples': "),
        ("nowhere", {}, "'nowhere' is not written as package.module:name"),
    ],
)
def test_unusable_calibration(quantize, tmp_path, given, more, problem):
    """Unusable calibration is an error before the store is made."""
    with pytest.raises(InputError, match=problem):
        quantize(given, **{**more, "store": tmp_path / "store"})
    assert not (tmp_path / "store").exists()


def test_samples_that_cannot_be_used(quantize, example):
    """Errors of samples have the method and the number of the sample."""

    def failing():
        yield example
        raise OSError("the disk is full")

    (x,) = example
    for given, problem in [
        ([], "calibration of method 'forward' gives no sample"),
        ([example, (x, x)], "calibration sample 1 has 2 tensors and values"),
        ([(torch.ones(2, 5),)], "calibration sample 0: input 0 has size 5 in dimension 1, the program takes 4"),
        ([(x.double(),)], r"calibration sample 0: input 0 is torch.float64, the program takes torch.float32"),
        (failing(), "calibration of method 'forward' failed: OSError: the disk is full"),
        (x, "calibration of method 'forward' is a Tensor"),
    ]:
        with pytest.raises(SourceError, match=problem):
            quantize(given)


@pytest.mark.slow
def test_rounding_by_samples(store, ran):
    """A file whose weights are rounded by samples is closer to eager on others, at equal size; it depends on them."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32)).eval()
    mixing = torch.randn(12, 64)
    samples, (example, *others) = (torch.randn(count, 24, 12) @ mixing for count in (8, 5))
    lost, sizes = {}, {}
    for rounding in ("nearest", "gptq"):
        recipe = {
            "specializations": [{"target": "xnnpack"}],
            "quantize_layers": {"linear": "8da4w", "rounding": rounding},
            "verify": {"min_sqnr_db": 5},
        }
        call = {"recipe": recipe, "store": store, "calibration": list(samples) if rounding == "gptq" else None}
        result = pteforge.export(net, (example,), **call)
        with torch.no_grad():
            lost[rounding] = sum(float((net(x) - result.run(x)).norm()) for x in others)
        sizes[rounding] = len(result.pte)
    assert sizes["gptq"] == sizes["nearest"]
    assert lost["gptq"] < 0.8 * lost["nearest"]
    assert "compile" not in ran(pteforge.export(net, (example,), **call))
    assert "compile" in ran(pteforge.export(net, (example,), **{**call, "calibration": others}))
    with pytest.raises(InputError, match="give `calibration`"):
        pteforge.export(net, (example,), recipe=recipe, store=store)
