"""Modules that PT2E prepared, trained with fake quantization or calibrated, are converted with the scales they have."""

from dataclasses import replace

import pytest
import torch
from pteforge import MethodCall
from pteforge.configs import Quantize as Quantization
from pteforge.errors import SourceError
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.engine.stage import CallableParams
from pteforge.tasks.quantize.stages.quantize import Quantize
from pteforge.tasks.quantize.stages.source_transform import SourceTransform
from pteforge.tasks.targets.find import check_quantizers
from pteforge.tests.lowering import recipe

PLAIN = recipe("xnnpack", verify={"min_sqnr_db": 20})
TRAINED = "prepared:trained"


def scales_of(module) -> list[float]:
    """The scales to which activations were trained."""
    from torchao.quantization.pt2e import FakeQuantizeBase

    found = [child for child in module.modules() if isinstance(child, FakeQuantizeBase)]
    return sorted({fake.scale.item() for fake in found if fake.scale.numel() == 1})


@pytest.mark.slow
def test_qat(stages):
    """A model trained with fake quantization runs in int8 on XNNPACK as it did in training."""
    import prepared

    torch.manual_seed(0)
    trained = prepared.trained(norm=True).methods["forward"].module
    lowered = stages.lower({"builder": TRAINED, "kwargs": {"norm": True}}, PLAIN)
    program = lowered.program("export")
    quantizing = [node for node in program.graph.nodes if "quantize_per_tensor.default" in str(node.target)]
    assert sorted({node.args[1] for node in quantizing}) == pytest.approx(scales_of(trained))
    assert [(bound.lower, bound.upper) for bound in program.range_constraints.values()] == [(1, 12)]
    assert not any("batch_norm" in str(node.target) for node in program.graph.nodes)
    assert computed_by_portable_kernels(lowered.file) == []


def computed_by_portable_kernels(file: bytes) -> list[str]:
    """Layers that XNNPACK did not take; shapes and the ends of the program are not among them."""
    operators = [operator for method in read_pte(file).methods for operator in method.operators]
    return [operator for operator in operators if any(layer in operator for layer in ("conv", "mm", "linear", "relu"))]


@pytest.mark.slow
def test_eager_is_the_trained_module(stages):
    """What files are compared with is the trained module with its fake quantization, without dropout or observers."""
    import prepared
    from pteforge.tasks.export.eager import run_sequences_in_eager
    from torchao.quantization.pt2e import disable_observer, move_exported_model_to_eval

    examples = stages.value(stages.export(TRAINED)["examples"])
    torch.manual_seed(0)
    model = prepared.trained()
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
    exported = stages.export("prepared:calibrated")
    inputs = {role: exported[role] for role in ("program", "examples")}
    params = Quantize.Params(quantizers=check_quantizers(Quantization(quantizer="xnnpack")))
    quantized = stages.run(Quantize, params, inputs)
    before, after = (str(stages.program(outputs["program"]).graph) for outputs in (exported, quantized))
    assert before == after
    assert "quantized_decomposed" in after


@pytest.mark.slow
def test_refused(stages):
    """A prepared module that was neither trained nor calibrated has no scales, and is refused in words."""
    with pytest.raises(SourceError, match=r"'forward' .*prepared .*observed nothing; train it"):
        stages.export("prepared:untrained")
    callable_ = CallableParams(source={"builder": "prepared:network", "kwargs": {}})
    params = SourceTransform.Params(source={"builder": TRAINED, "kwargs": {}}, transforms=(callable_,))
    with pytest.raises(SourceError, match="PT2E has prepared; source_transforms"):
        stages.run(SourceTransform, params)
