"""Every field of `executorch.export`'s recipes, and of the configs they hold: the file is the one that upstream makes.

`CASES` has a recipe for each field. The file that `executorch.export.export` makes of it equals pteforge's byte for
byte, and differs from the one without the field. `NOT_COMPARED` has the fields for which there is no such recipe.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import warnings
from collections.abc import Callable

import pteforge
import pytest

pytestmark = pytest.mark.filterwarnings(
    "ignore:This API and all of its related functionality", "ignore:`HintBasedSymShapeEvalPass` is deprecated"
)

with warnings.catch_warnings():  # these modules warn when they are imported
    warnings.simplefilter("ignore")
    import torch
    from executorch import export as upstream
    from executorch.backends.apple.coreml.recipes import CoreMLRecipeType
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
    from executorch.backends.vulkan.quantizer.vulkan_quantizer import VulkanQuantizer
    from executorch.backends.vulkan.quantizer.vulkan_quantizer import (
        get_symmetric_quantization_config as vulkan_quantization_config,
    )
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackDynamicallyQuantizedPartitioner,
        XnnpackPartitioner,
    )
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
    from executorch.exir.dialects._ops import ops
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, naive
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
    from executorch.exir.passes.sym_shape_eval_pass import HintBasedSymShapeEvalPass
    from executorch.export import AOQuantizationConfig, ExportRecipe, LoweringRecipe, QuantizationRecipe, StageType
    from executorch.export import recipe as upstream_recipe
    from pteforge.tasks.engine.workers.entry import fresh_state
    from torchao.quantization.granularity import PerAxis
    from torchao.quantization.pt2e import move_exported_model_to_train
    from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig

WHOLE = (StageType.TORCH_EXPORT, StageType.TO_EDGE, StageType.EDGE_PROGRAM_MANAGER_TRANSFORM)
LAST = StageType.TO_EXECUTORCH


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32)).eval()


EXAMPLE = (torch.linspace(-1, 1, 64).reshape(2, 32),)


def functions():
    """Functions of tests/zoo, which fixtures make importable."""
    return importlib.import_module("recipe_functions")


def lowering(**fields):
    return ExportRecipe(lowering_recipe=LoweringRecipe(**{"partitioners": [XnnpackPartitioner()]} | fields))


def quantizing(**fields):
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    recipe = lowering()
    recipe.quantization_recipe = QuantizationRecipe(quantizers=[quantizer], **fields)
    return recipe


STATIC = get_symmetric_quantization_config(is_per_channel=True)
PER_TENSOR = get_symmetric_quantization_config()
DYNAMIC = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)


def quantized_by(*quantizers):
    recipe = lowering()
    recipe.quantization_recipe = QuantizationRecipe(quantizers=list(quantizers))
    return recipe


def first_layer_only():
    quantizer = XNNPACKQuantizer()
    quantizer.set_module_name("0", STATIC)
    return quantizer


def by_type():
    quantizer = XNNPACKQuantizer().set_global(STATIC)
    quantizer.set_module_type(torch.nn.Linear, PER_TENSOR)
    return quantizer


def by_operator():
    return XNNPACKQuantizer().set_operator_type(torch.ops.aten.linear.default, STATIC)


def filtered():
    return XNNPACKQuantizer().set_global(STATIC).set_filter_function(functions().before_last)


def int4(filter_fn=None):
    recipe = lowering()
    config = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerAxis(0))
    recipe.quantization_recipe = QuantizationRecipe(ao_quantization_configs=[AOQuantizationConfig(config, filter_fn)])
    return recipe


def emitting(**fields):
    return ExportRecipe(executorch_backend_config=ExecutorchBackendConfig(**fields))


def with_fields(recipe, **fields):
    return dataclasses.replace(recipe, **fields)


def managed(**fields):
    return lowering(edge_manager_transform_passes=[functions().manager_passes], **fields)


@dataclasses.dataclass(frozen=True)
class Case:
    """A recipe, and one without the field, which makes another file; None for a field that does not change files."""

    recipe: Callable[[], ExportRecipe]
    without: Callable[[], ExportRecipe] | None = None


CASES = {
    "ExportRecipe.name": Case(lambda: ExportRecipe(name="mine")),
    "ExportRecipe.quantization_recipe": Case(quantizing, lowering),
    "ExportRecipe.aten_transform_passes": Case(
        lambda: with_fields(lowering(), aten_transform_passes=[functions().tanh_of_method]), lowering
    ),
    "ExportRecipe.source_transform_in_place": Case(lambda: with_fields(int4(), source_transform_in_place=True)),
    "ExportRecipe.lowering_recipe": Case(lowering, ExportRecipe),
    "ExportRecipe.executorch_backend_config": Case(lambda: emitting(segment_alignment=4096), ExportRecipe),
    "ExportRecipe.pipeline_stages": Case(lambda: with_fields(lowering(), pipeline_stages=[*WHOLE, LAST]), lowering),
    "ExportRecipe.pipeline_stages: to_backend": Case(
        lambda: with_fields(
            quantizing(),
            pipeline_stages=[StageType.SOURCE_TRANSFORM, StageType.QUANTIZE, *WHOLE, StageType.TO_BACKEND, LAST],
        ),
        quantizing,
    ),
    "ExportRecipe.strict": Case(lambda: with_fields(lowering(), strict=False)),
    "QuantizationRecipe.quantizers": Case(quantizing, lowering),
    "QuantizationRecipe.quantizers: by module": Case(lambda: quantized_by(first_layer_only()), quantizing),
    "QuantizationRecipe.quantizers: by type": Case(
        lambda: quantized_by(by_type()), lambda: quantized_by(XNNPACKQuantizer().set_global(STATIC))
    ),
    "QuantizationRecipe.quantizers: by operator": Case(lambda: quantized_by(by_operator()), quantizing),
    "QuantizationRecipe.quantizers: filter": Case(lambda: quantized_by(filtered()), quantizing),
    "QuantizationRecipe.quantizers: composed": Case(
        lambda: quantized_by(
            ComposableQuantizer([first_layer_only(), XNNPACKQuantizer().set_global(DYNAMIC)]),
        ),
        lambda: quantized_by(first_layer_only()),
    ),
    "QuantizationRecipe.quantizers: Vulkan's": Case(
        lambda: quantized_by(VulkanQuantizer().set_global(vulkan_quantization_config(is_dynamic=True))), quantizing
    ),
    "QuantizationRecipe.ao_quantization_configs": Case(int4, lowering),
    "QuantizationRecipe.dynamic_batch_size": Case(
        lambda: quantizing(dynamic_batch_size=True, calibration_inputs_fn=functions().batches), quantizing
    ),
    "QuantizationRecipe.calibration_inputs_fn": Case(
        lambda: quantizing(calibration_inputs_fn=functions().large_samples), quantizing
    ),
    "QuantizationRecipe.pre_prepare_passes": Case(
        lambda: quantizing(pre_prepare_passes=[functions().sigmoid_for_relu]), quantizing
    ),
    "QuantizationRecipe.post_prepare_passes": Case(
        lambda: quantizing(post_prepare_passes=[functions().see_a_large_value]), quantizing
    ),
    "QuantizationRecipe.pre_convert_passes": Case(
        lambda: quantizing(pre_convert_passes=[functions().widen]), quantizing
    ),
    "QuantizationRecipe.post_convert_passes": Case(
        lambda: quantizing(post_convert_passes=[functions().halve_the_bias]), quantizing
    ),
    "LoweringRecipe.partitioners": Case(lowering, ExportRecipe),
    "LoweringRecipe.partitioners: by method": Case(
        lambda: lowering(partitioners={"forward": [XnnpackPartitioner(per_op_mode=True)]}), lowering
    ),
    "LoweringRecipe.partitioners: several": Case(
        lambda: lowering(
            partitioners=[
                VulkanPartitioner(
                    {"force_fp16": True, "texture_limits": (512, 512, 512)},
                    operator_blocklist=[ops.edge.aten.relu.default],
                ),
                XnnpackPartitioner(),
            ]
        ),
        lowering,
    ),
    "LoweringRecipe.partitioners: subclass": Case(
        lambda: lowering(partitioners=[XnnpackDynamicallyQuantizedPartitioner(per_op_mode=True)]), lowering
    ),
    "LoweringRecipe.edge_transform_passes": Case(
        lambda: lowering(edge_transform_passes=[functions().next_of_method]), lowering
    ),
    "LoweringRecipe.edge_manager_transform_passes": Case(
        lambda: managed(partitioners=None, edge_transform_passes=[functions().next_of_method]),
        lambda: lowering(partitioners=None, edge_transform_passes=[functions().next_of_method]),
    ),
    "LoweringRecipe.edge_manager_transform_passes: with delegates": Case(managed),
    "LoweringRecipe.edge_manager_transform_passes: before partitioners": Case(
        lambda: with_fields(managed(), pipeline_stages=[*WHOLE, StageType.TO_BACKEND, LAST]), lowering
    ),
    "LoweringRecipe.edge_compile_config": Case(
        lambda: lowering(edge_compile_config=EdgeCompileConfig(preserve_ops=[torch.ops.aten.linear.default])),
    ),
    "AOQuantizationConfig.ao_base_config": Case(int4, lowering),
    "AOQuantizationConfig.filter_fn": Case(lambda: int4(functions().only_first), int4),
    "ExecutorchBackendConfig.memory_planning_pass": Case(
        lambda: emitting(memory_planning_pass={"forward": MemoryPlanningPass(alignment=64, alloc_graph_input=False)}),
        ExportRecipe,
    ),
    "ExecutorchBackendConfig.memory_planning_pass: of all methods": Case(
        lambda: emitting(
            memory_planning_pass=MemoryPlanningPass(memory_planning_algo=MemoryPlanningAlgorithmSuite([naive]))
        ),
        ExportRecipe,
    ),
    "ExecutorchBackendConfig.passes": Case(
        lambda: emitting(passes=[functions().Activation(activation="tanh")]),
        lambda: emitting(passes=[functions().relu_to_sigmoid]),
    ),
    "ExecutorchBackendConfig.sym_shape_eval_pass": Case(
        lambda: emitting(sym_shape_eval_pass={"forward": HintBasedSymShapeEvalPass()})
    ),
    "ExecutorchBackendConfig.propagate_device_config": Case(
        lambda: emitting(propagate_device_config={"forward": PropagateDeviceConfig(skip_h2d_for_method_inputs=True)})
    ),
}

NOT_COMPARED = {
    "ExportRecipe.mode": "ExecuTorch reads it nowhere; ours writes stack traces and an ETRecord",
    "QuantizationRecipe.is_qat": "test_training compares what users pass in its place",
    "QuantizationRecipe.train_fn": "test_training compares what users pass in its place",
}


def upstream_fields():
    classes = (value for value in vars(upstream_recipe).values() if dataclasses.is_dataclass(value))
    own = [found for found in classes if found.__module__ == upstream_recipe.__name__ and found.__name__[0] != "_"]
    return {f"{found.__name__}.{field.name}" for found in own for field in dataclasses.fields(found)}


def test_every_field_has_a_case():
    """A field that ExecuTorch adds to its recipes fails this test until it is compared, or it is said why not."""
    compared = {name.partition(":")[0] for name in CASES if not name.startswith("ExecutorchBackendConfig.")}
    assert compared | NOT_COMPARED.keys() == upstream_fields()
    assert not compared & NOT_COMPARED.keys()


@functools.cache
def made_upstream(recipe):
    with fresh_state():  # one thread, as our stages have: sums depend on their number
        return upstream.export(network(), [EXAMPLE], recipe()).get_pte_buffer()


@pytest.mark.nightly
@pytest.mark.parametrize("field", CASES)
def test_the_file_is_upstreams(field, store):
    """Both make one file of a recipe, and another one without the field."""
    case = CASES[field]
    result = pteforge.export(network(), EXAMPLE, recipe=case.recipe(), store=store, until="serialize")
    file = result.artifact("serialize")
    assert file == made_upstream(case.recipe)
    if case.without:
        assert file != made_upstream(case.without)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:Function _TORCH_OPS_REGISTRY", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_core_ml(store):
    """The programs with delegates are equal; Core ML's files never are, since each has a random identifier."""
    given = ExportRecipe.get_recipe(CoreMLRecipeType.FP16, skip_ops_for_coreml_delegation=["aten.relu.default"])
    stages = [StageType.SOURCE_TRANSFORM, StageType.QUANTIZE, StageType.TORCH_EXPORT]
    until_compile = dataclasses.replace(given, pipeline_stages=[*stages, StageType.TO_EDGE_TRANSFORM_AND_LOWER])
    theirs = upstream.export(network(), [EXAMPLE], until_compile).get_edge_program_manager()
    ours = pteforge.export(network(), EXAMPLE, recipe=given, store=store, until="compile").edge_manager()
    names = [[str(node.target) for node in made.exported_program().graph.nodes] for made in (ours, theirs)]
    assert names[0] == names[1]
    assert sum("executorch_call_delegate" in name for name in names[0]) == 2
    assert any("aten.relu.default" in name for name in names[0])


@pytest.mark.nightly
def test_training(store):
    """A module that was prepared and trained as upstream does it becomes the file that upstream makes of `train_fn`."""
    train, quantizer = functions().train, quantizing().quantization_recipe.quantizers[0]
    prepared = prepare_qat_pt2e(torch.export.export(network().train(), EXAMPLE, strict=True).module(), quantizer)
    move_exported_model_to_train(prepared)
    train(prepared)
    result = pteforge.export(prepared, EXAMPLE, recipe=quantizing(), store=store, until="serialize")
    assert result.artifact("serialize") == made_upstream(lambda: quantizing(is_qat=True, train_fn=train))
