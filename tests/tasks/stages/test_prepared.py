"""Modules that PT2E prepared, trained with fake quantization or calibrated, are converted with the scales they have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pteforge import MethodCall
from pteforge.artifacts.pte.reader import read_pte
from pteforge.configs import Quantize
from pteforge.errors import SourceError
from pteforge.tasks.catalog import StageName
from pteforge.tasks.params import CallableParams, QuantizeParams
from pteforge.tasks.source_params import SourceTransformParams
from pteforge.tasks.targets.quantizers import check_quantizers

PLAIN = {"specializations": [{"target": "xnnpack"}], "verify": {"min_sqnr_db": 20}}
TRAINED = "prepared_models:trained"


def scales_of(module) -> list[float]:
    """The scales to which activations were trained."""
    from torchao.quantization.pt2e import FakeQuantizeBase

    found = {id(each): each for each in module.modules() if isinstance(each, FakeQuantizeBase)}
    return sorted({each.scale.item() for each in found.values() if each.scale.numel() == 1})


@pytest.mark.slow
def test_qat(stages):
    """A model trained with fake quantization runs in int8 on XNNPACK as it did in training.

    Its scales are those of the training, its batch may vary as it could there, and batch norms that took part in the
    training are folded into the convolutions before them.
    """
    import prepared_models
    import torch

    torch.manual_seed(0)
    trained = prepared_models.trained(norm=True).methods["forward"].module
    lowered = stages.lower({"builder": TRAINED, "kwargs": {"norm": True}}, PLAIN)
    program = stages.program(lowered.outputs["export"]["program"])
    quantizing = [node for node in program.graph.nodes if "quantize_per_tensor.default" in str(node.target)]
    assert sorted({node.args[1] for node in quantizing}) == pytest.approx(scales_of(trained))
    assert [(bound.lower, bound.upper) for bound in program.range_constraints.values()] == [(1, 12)]
    assert not any("batch_norm" in str(node.target) for node in program.graph.nodes)
    assert computed_by_portable_kernels(lowered.file) == []


def computed_by_portable_kernels(file: bytes) -> list[str]:
    """Layers that XNNPACK did not take; shapes and the ends of the program are not among them."""
    operators = [operator for method in read_pte(file).methods for operator in method.operators]
    return [each for each in operators if any(layer in each for layer in ("conv", "mm", "linear", "relu"))]


def test_eager_is_the_trained_module(stages):
    """What files are compared with is the trained module with its fake quantization, without dropout or observers.

    In sequences of calls it is the same.
    """
    import prepared_models
    import torch
    from pteforge.tasks.stages.sequences import run_sequences_in_eager
    from torchao.quantization.pt2e import disable_observer, move_exported_model_to_eval

    examples = stages.value(stages.export(TRAINED)["examples"])
    torch.manual_seed(0)
    model = prepared_models.trained()
    definition = model.methods["forward"]
    calls = [MethodCall("forward", inputs) for inputs in definition.example_inputs]
    (in_sequence,) = run_sequences_in_eager(replace(model, sequences=[calls]))
    move_exported_model_to_eval(definition.module)
    definition.module.apply(disable_observer)
    with torch.no_grad():
        expected = [definition.module(*inputs) for inputs in definition.example_inputs]
    assert len(expected) == 2
    for number, outputs in enumerate(expected):
        assert torch.equal(examples["outputs"][number][0], outputs)
        assert torch.equal(in_sequence[number][2][0], outputs)


def test_calibrated_by_the_builder(stages):
    """A module that its builder has calibrated is converted as it is, and not calibrated on the examples."""
    exported = stages.export("prepared_models:calibrated")
    inputs = {role: exported[role] for role in ("program", "examples")}
    params = QuantizeParams(quantizers=check_quantizers(Quantize(quantizer="xnnpack")))
    quantized = stages.run(StageName.QUANTIZE, params, inputs)
    before, after = (str(stages.program(each["program"]).graph) for each in (exported, quantized))
    assert before == after
    assert "quantized_decomposed" in after


def test_untrained(stages):
    """A module that was prepared and then neither trained nor calibrated has no scales, and is refused in words."""
    with pytest.raises(SourceError, match=r"method 'forward' .* prepared .* has observed nothing; train it"):
        stages.export("prepared_models:untrained")


def test_no_transforms(stages):
    """The weights of a prepared module are quantized already, so source transforms refuse it."""
    callable_ = CallableParams(source={"builder": "prepared_models:network", "kwargs": {}})
    params = SourceTransformParams(source={"builder": TRAINED, "kwargs": {}}, transforms=(callable_,))
    with pytest.raises(SourceError, match="PT2E has prepared; source_transforms cannot change"):
        stages.run(StageName.SOURCE_TRANSFORM, params)
