"""What quantizers observe can be handed over with the model."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pteforge
import pytest
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.export import ExportRecipe, QuantizationRecipe
from pteforge.configs import Dataset, Recipe
from pteforge.errors import InputError, SourceError

RECIPE = "xnnpack-int8-static"
OTHERS_ONLY = Recipe.model_validate({"specializations": [{"target": "xnnpack"}], "quantize": {"methods": ["encode"]}})


@pytest.fixture
def quantize(net, example, store):
    """Quantizes the network, and goes no further."""

    def quantized(calibration=None, **more):
        call = {"recipe": RECIPE, "until": "quantize", "store": store, **more}
        return pteforge.export(net, example, calibration=calibration, **call)

    return quantized


def ran(result):
    """Stages that ran."""
    return {stage.stage for stage in result.stages if stage.status == "ran"}


def graph(result):
    """The quantized program, scales included."""
    return str(result.artifact("quantize").graph)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This API and all of its related functionality")
def test_an_export_recipes_inputs(quantize, nets):
    """What an ExportRecipe's own function gives is observed, unless the caller gives something else."""
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    quantization = QuantizationRecipe(quantizers=[quantizer], calibration_inputs_fn=nets.samples)
    recipe = ExportRecipe(name="theirs", quantization_recipe=quantization, strict=False)
    given = quantize(nets.samples())
    assert graph(quantize(recipe=recipe)) == graph(given)
    assert graph(quantize(nets.samples(4), recipe=recipe)) == graph(quantize(nets.samples(4))) != graph(given)


@pytest.mark.slow
def test_content_is_what_counts(quantize, nets, monkeypatch):
    """A list, a generator and the name of a dataset are one calibration where their samples are; others are another."""
    import torch

    monkeypatch.syspath_prepend(Path(nets.__file__).parent)
    given = quantize(nets.samples())
    assert "calibration" in ran(given)
    assert graph(given) != graph(quantize())
    stored = list(given.artifact("calibration"))
    assert torch.equal(stored[2][0], list(nets.samples())[2][0])
    same = [
        list(nets.samples()),
        {"forward": nets.samples()},
        "live_nets:samples",
        Dataset(dataset="live_nets:samples"),
    ]
    for each in same:
        result = quantize(each)
        assert graph(result) == graph(given)
        assert "quantize" not in ran(result)
    other = quantize(nets.samples(2))
    assert "quantize" in ran(other)
    assert graph(other) != graph(given)


def test_one_sample(quantize, example):
    """A tuple is one sample, as it is one example; a tensor in a list is the only input."""
    assert graph(quantize(example)) == graph(quantize([example[0]])) == graph(quantize())


def test_never_all_in_memory(quantize, nets):
    """Samples are taken one after another: none is kept by the time that the one after the next is made."""

    def watched():
        earlier = []
        for (sample,) in nets.samples(6):
            gc.collect()
            assert [each() is None for each in earlier[:-1]] == [True] * len(earlier[:-1])
            earlier.append(weakref.ref(sample))
            yield (sample,)
            del sample

    assert len(list(quantize(watched()).artifact("calibration"))) == 6


@pytest.mark.parametrize(
    ("given", "more", "problem"),
    [
        ([], {"recipe": "xnnpack-fp32"}, "calibration is given, but the recipe 'xnnpack-fp32' has no `quantize`"),
        ([], {"recipe": OTHERS_ONLY}, "calibration of method 'forward': the recipe 'recipe' does not quantize it"),
        ({"encode": []}, {}, r"calibration names the methods \['encode'\]; the model has \['forward'\]"),
        (3, {}, "calibration of method 'forward' is a int; give a tuple of positional inputs"),
        ("nowhere:samples", {}, "calibration of method 'forward': builder 'nowhere:samples': "),
        ("nowhere", {}, "'nowhere' is not written as package.module:name"),
    ],
)
def test_refused_at_once(quantize, tmp_path, given, more, problem):
    """What cannot be calibration is refused before anything is made."""
    with pytest.raises(InputError, match=problem):
        quantize(given, **{**more, "store": tmp_path / "store"})
    assert not (tmp_path / "store").exists()


def test_samples_that_cannot_be_used(quantize, example):
    """No samples, samples that do not fit and a failing generator are told by method and number."""
    import torch

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
