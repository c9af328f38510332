"""Recipes of `executorch.export` become pteforge recipes, or an error names the field that has no equivalent."""

from __future__ import annotations

import json
import warnings

import pteforge
import pytest
from pteforge.api.recipes import find_recipe
from pteforge.configs import load_zoo, preset_names
from pteforge.configs.presets import RECIPE_TYPES
from pteforge.configs.recipe_lookup import load_preset
from pteforge.errors import ConfigError
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.quantize.torchao_configs import class_name
from pteforge.tasks.targets.find import find_quantizer_options

pytestmark = pytest.mark.filterwarnings("ignore:This API and all of its related functionality")

with warnings.catch_warnings():  # these modules warn when they are imported
    warnings.simplefilter("ignore")
    import coremltools
    import executorch.backends.xnnpack.recipes  # noqa: F401 - registers the types
    import torch
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.backends.apple.coreml.recipes import CoreMLRecipeType
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
    from executorch.backends.vulkan.quantizer.vulkan_quantizer import VulkanQuantizer
    from executorch.backends.vulkan.quantizer.vulkan_quantizer import (
        get_symmetric_quantization_config as vulkan_quantization_config,
    )
    from executorch.backends.xnnpack.partition.config.generic_node_configs import AddConfig
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.backends.xnnpack.recipes.xnnpack_recipe_types import XNNPackRecipeType
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, naive
    from executorch.exir.pass_base import ExportPass
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
    from executorch.exir.passes.sym_shape_eval_pass import HintBasedSymShapeEvalPass
    from executorch.export import (
        AOQuantizationConfig,
        ExportRecipe,
        LoweringRecipe,
        QuantizationRecipe,
        RecipeType,
        StageType,
    )
    from executorch.export.recipe import Mode
    from executorch.export.target_recipes import get_ios_recipe
    from pteforge.tasks.quantize.module_transforms import make_config
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig


class Unknown(RecipeType):
    """A type of a backend without recipes."""

    FP8 = "nowhere_fp8"

    @classmethod
    def get_backend_name(cls) -> str:
        return "nowhere"


class Fallback(torch.nn.Module):
    """Two linear layers with arithmetic between them, as in executorch/export/tests/test_target_recipes.py."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 2)

    def forward(self, x, y):
        return self.second(self.first(x) + y - x)


class OtherPartitioner(XnnpackPartitioner):
    """Finds nothing."""

    def partition(self, exported_program):
        return super().partition(exported_program)


class OtherQuantizer(XNNPACKQuantizer):
    """Annotates in its own way."""

    def annotate(self, model):
        return model


class Counted(ExportPass):
    """A pass with state that its arguments do not say."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0


def counted():
    made = Counted()
    made.count = 3
    return made


def lowering(name=None, **fields):
    return ExportRecipe(name=name, lowering_recipe=LoweringRecipe(**fields))


def quantizing(**fields):
    return ExportRecipe(quantization_recipe=QuantizationRecipe(**fields))


def emitting(**fields):
    return ExportRecipe(executorch_backend_config=ExecutorchBackendConfig(**fields))


def quantizers(recipe):
    """Names and options of a recipe's quantizers, defaults filled in."""
    chosen = recipe.quantize.chosen if recipe.quantize else ()
    return [(spec.quantizer, find_quantizer_options(spec.quantizer, dict(spec.options))) for spec in chosen]


@pytest.mark.parametrize("kind", list(XNNPackRecipeType), ids=lambda kind: kind.name)
def test_recipe_types(kind):
    """Each of XNNPACK's types is a shipped recipe, equal to the translation of the type's ExportRecipe."""
    ours = pteforge.recipe_from_executorch(kind)
    theirs = pteforge.recipe_from_executorch(ExportRecipe.get_recipe(kind))
    assert ours.specializations == theirs.specializations
    assert quantizers(ours) == quantizers(theirs)
    assert ours.verify.min_sqnr_db == theirs.verify.min_sqnr_db
    for transform, translated in zip(ours.source_transforms, theirs.source_transforms, strict=True):
        assert class_name(transform.torchao) == translated.torchao
        made = [make_config(translated.torchao, params) for params in (transform.params, translated.params)]
        assert made[0] == made[1]


def test_each_type_has_a_recipe():
    """The recipe of each type is shipped; docs/how-to/quantization.md lists those that have no type."""
    assert set(RECIPE_TYPES.values()) < set(preset_names())


@pytest.mark.parametrize("kind", list(XNNPackRecipeType), ids=lambda kind: kind.name)
def test_recipe_types_by_name(kind, tmp_path):
    """The value of a recipe type names its recipe for `pteforge.export`, in a zoo, and in `extends`."""
    by_name = find_recipe(kind.value).planned
    assert (by_name.name, by_name.recipe) == (kind.value, pteforge.recipe_from_executorch(kind))
    zoo = {
        "version": 1,
        "models": {"net": {"source": "nets:net", "recipes": [kind.value, "own"]}},
        "recipes": {"own": {"extends": kind.value, "description": "mine"}},
    }
    (tmp_path / "zoo.yaml").write_text(json.dumps(zoo))
    loaded = load_zoo(tmp_path / "zoo.yaml").zoo.recipes
    assert loaded[kind.value] == by_name.recipe
    assert loaded["own"] == by_name.recipe.model_copy(update={"description": "mine"})


def test_an_unknown_type():
    """A type without a shipped recipe is an error with the known types."""
    with pytest.raises(ConfigError, match="type 'nowhere_fp8'; known: xnnpack_fp32, "):
        pteforge.recipe_from_executorch(Unknown.FP8)
    with pytest.raises(ConfigError, match="recipe: is a dict"):
        pteforge.recipe_from_executorch({})


def combined():
    vulkan = lowering("vulkan", partitioners=[VulkanPartitioner()])
    return ExportRecipe.combine([vulkan, lowering("xnnpack", partitioners=[XnnpackPartitioner()])])


def test_combined():
    """A combined recipe is one file, in which each backend takes what those before it leave."""
    recipe = pteforge.recipe_from_executorch(combined())
    assert recipe.output.form == "plain"
    (payload,) = recipe.specializations
    assert (payload.target, payload.options) == ("vulkan+xnnpack", {"vulkan": {}, "xnnpack": {}})
    twice = lowering(partitioners=[XnnpackPartitioner(), XnnpackPartitioner()])
    assert [spec.target for spec in pteforge.recipe_from_executorch(twice).specializations] == ["xnnpack"]
    again = lowering(partitioners=[VulkanPartitioner(), XnnpackPartitioner(), VulkanPartitioner()])
    assert pteforge.recipe_from_executorch(again).specializations == recipe.specializations
    differing = lowering(partitioners=[XnnpackPartitioner(), XnnpackPartitioner(per_op_mode=True)])
    with pytest.raises(ConfigError, match="another partitioner of target 'xnnpack'"):
        pteforge.recipe_from_executorch(differing)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Function _TORCH_OPS_REGISTRY", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_core_ml_with_xnnpack_as_fallback(store):
    """Upstream's own test of `get_ios_recipe`: linear layers that Core ML is to leave go to XNNPACK, in one file."""
    torch.manual_seed(0)
    recipe = get_ios_recipe("ios-arm64-coreml-fp32", skip_ops_for_coreml_delegation=["aten.linear.default"])
    example = (torch.randn(2, 4), torch.randn(2, 4))
    result = pteforge.export(Fallback().eval(), example, recipe=recipe, store=store)
    delegates = read_pte(result.pte).methods[0].delegates
    assert [delegate.id for delegate in delegates] == ["XnnpackBackend", "CoreMLBackend", "XnnpackBackend"]


def test_lowering_by_partitioners_of_methods(builders, store):
    """One method goes to the backend, the other to the portable kernels, in one payload."""
    partitioners = {"encode": [], "decode": [XnnpackPartitioner()]}
    result = pteforge.export(builders.tied(), recipe=lowering(partitioners=partitioners), strict=False, store=store)
    assert {report.method: report.partitions for report in result.delegation()} == {"encode": 0, "decode": 1}


def test_partitioners_by_method():
    """A mapping of partitioners is a target for each method; methods without partitioners are portable."""
    partitioners = {
        "prefill": [XnnpackPartitioner(per_op_mode=True)],
        "decode": [],
        "embed": [VulkanPartitioner(), XnnpackPartitioner(per_op_mode=True)],
    }
    recipe = pteforge.recipe_from_executorch(lowering(partitioners=partitioners))
    (payload,) = recipe.specializations
    assert payload.target == "portable"
    assert payload.methods["prefill"].target == "xnnpack"
    assert payload.methods["prefill"].options == {"per_operator": True}
    assert payload.methods["decode"].delegate is False
    assert payload.methods["embed"].target == "vulkan+xnnpack"
    assert payload.methods["embed"].options == {"vulkan": {}, "xnnpack": {"per_operator": True}}


def test_configs():
    """Edge and backend configuration become options, field by field; debug mode is kept."""
    recipe = pteforge.recipe_from_executorch(
        ExportRecipe(
            mode=Mode.DEBUG,
            lowering_recipe=LoweringRecipe(
                edge_compile_config=EdgeCompileConfig(
                    _check_ir_validity=False,
                    _skip_dim_order=True,
                    _core_aten_ops_exception_list=[torch.ops.aten.linalg_vector_norm.default],
                    preserve_ops=[torch.ops.aten.hardswish.default],
                )
            ),
            executorch_backend_config=ExecutorchBackendConfig(
                segment_alignment=4096,
                memory_planning_pass=MemoryPlanningPass(
                    memory_planning_algo=MemoryPlanningAlgorithmSuite([naive]), alloc_graph_input=False
                ),
                do_quant_fusion_and_const_prop=True,
            ),
        )
    )
    assert recipe.edge.model_dump(exclude_defaults=True) == {
        "preserve_operators": ("aten.hardswish.default",),
        "check_ir_validity": False,
        "skip_dim_order": True,
        "core_aten_ops_exception_list": ("aten.linalg_vector_norm.default",),
    }
    changed = recipe.compile.model_dump(exclude_defaults=True)
    assert changed == {
        "segment_alignment": 4096,
        "memory_planning_algo": "naive",
        "alloc_graph_input": False,
        "do_quant_fusion_and_const_prop": True,
    }
    assert [spec.target for spec in recipe.specializations] == ["portable"]
    assert recipe.debug
    assert not pteforge.recipe_from_executorch(ExportRecipe()).debug


def quantizer_with_a_filter():
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    quantizer.set_filter_function(lambda _node: True)
    return quantizer


REFUSED = {
    "aten_transform_passes[0]": lambda: ExportRecipe(aten_transform_passes=[lambda _name, program: program]),
    "lowering_recipe.edge_transform_passes[0]": lambda: lowering(edge_transform_passes=[lambda _name, _program: []]),
    "lowering_recipe.edge_manager_transform_passes[0]": lambda: lowering(edge_manager_transform_passes=[lambda _: []]),
    "lowering_recipe.partitioners[0].options['buffer_limit']": lambda: lowering(
        partitioners=[VulkanPartitioner({"buffer_limit": 64})]
    ),
    "lowering_recipe.partitioners[1].nn_module_blocklist": lambda: lowering(
        partitioners=[XnnpackPartitioner(), VulkanPartitioner(nn_module_blocklist=["Linear"])]
    ),
    "lowering_recipe.partitioners[0].partition": lambda: lowering(partitioners=[OtherPartitioner()]),
    "lowering_recipe.partitioners[0].target_partitioner_configs": lambda: lowering(
        partitioners=[XnnpackPartitioner(configs=[AddConfig])]
    ),
    "quantization_recipe.quantizers[0].annotate": lambda: quantizing(quantizers=[OtherQuantizer()]),
    "quantization_recipe.quantizers[0].quantizers[1].global_config.weight.quant_min": lambda: quantizing(
        quantizers=[
            ComposableQuantizer(
                [XNNPACKQuantizer(), VulkanQuantizer().set_global(vulkan_quantization_config(weight_qmin=-100))]
            )
        ]
    ),
    "quantization_recipe.quantizers[0].global_config.weight.quant_min": lambda: quantizing(
        quantizers=[XNNPACKQuantizer().set_global(get_symmetric_quantization_config(weight_qmin=-100))]
    ),
    "quantization_recipe.is_qat": lambda: quantizing(is_qat=True),
    "quantization_recipe.post_convert_passes[0]": lambda: quantizing(
        quantizers=[XNNPACKQuantizer().set_global(get_symmetric_quantization_config())],
        post_convert_passes=[lambda module: module],
    ),
    "quantization_recipe.calibration_inputs_fn": lambda: quantizing(calibration_inputs_fn=list),
    "quantization_recipe.quantizers[0].filter_fn": lambda: quantizing(quantizers=[quantizer_with_a_filter()]),
    "quantization_recipe.ao_quantization_configs[0].filter_fn": lambda: quantizing(
        ao_quantization_configs=[
            AOQuantizationConfig(Int8DynamicActivationIntxWeightConfig(), lambda _module, _name: True)
        ]
    ),
    "executorch_backend_config.passes[0]": lambda: emitting(passes=[lambda module: module]),
    "executorch_backend_config.passes[0].count": lambda: emitting(passes=[counted()]),
    "executorch_backend_config.external_constants": lambda: emitting(external_constants=lambda _node: "weights"),
    "executorch_backend_config.external_mutable_weights": lambda: emitting(external_mutable_weights=True),
    "executorch_backend_config.sym_shape_eval_pass": lambda: emitting(sym_shape_eval_pass={"forward": ExportPass()}),
    "executorch_backend_config.memory_planning_pass": lambda: emitting(
        memory_planning_pass={"a": MemoryPlanningPass(), "b": MemoryPlanningPass(share_mutable_buffers=True)}
    ),
    "pipeline_stages": lambda: ExportRecipe(
        quantization_recipe=QuantizationRecipe(), pipeline_stages=[StageType.TORCH_EXPORT, StageType.TO_EDGE]
    ),
}


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        ([StageType.TO_EXECUTORCH, StageType.TORCH_EXPORT], "to_executorch cannot come first"),
        (
            [StageType.TORCH_EXPORT, StageType.TO_BACKEND],
            "to_backend cannot follow torch_export; stages before it are:",
        ),
        ([StageType.TO_EDGE, StageType.TORCH_EXPORT], "torch_export cannot follow to_edge"),
        ([StageType.TORCH_EXPORT, StageType.TORCH_EXPORT], "torch_export cannot follow torch_export"),
        ([StageType.TORCH_EXPORT, StageType.SOURCE_TRANSFORM], "before it are: none"),
        ([StageType.SOURCE_TRANSFORM], "nothing is lowered by source_transform alone"),
        (["link"], "there is no stage that ends with 'link'"),
        ([StageType.TO_EDGE, StageType.TO_BACKEND], "leave out edge_program_manager_transform or .* edge_transform_"),
        ([StageType.TO_EDGE_TRANSFORM_AND_LOWER, StageType.TO_EXECUTORCH], "there are edge_manager_transform_passes"),
    ],
)
def test_stages_in_no_order(stages, problem):
    """What ExecuTorch's session refuses, what makes nothing, and what leaves out passes is refused here, too."""
    passes = LoweringRecipe(edge_transform_passes=[list], edge_manager_transform_passes=[list])
    with pytest.raises(ConfigError, match=problem) as caught:
        find_recipe(ExportRecipe(pipeline_stages=stages, lowering_recipe=passes))
    assert caught.value.field == "ExportRecipe.pipeline_stages"


@pytest.mark.filterwarnings("ignore:`HintBasedSymShapeEvalPass` is deprecated")
def test_memory_planning_by_method():
    """What a config has by method are options of those methods, next to their partitioners."""
    recipe = pteforge.recipe_from_executorch(
        ExportRecipe(
            lowering_recipe=LoweringRecipe(partitioners={"decode": [XnnpackPartitioner()]}),
            executorch_backend_config=ExecutorchBackendConfig(
                memory_planning_pass={
                    "encode": MemoryPlanningPass(alloc_graph_input=False, alignment=64),
                    "decode": MemoryPlanningPass(memory_planning_algo=MemoryPlanningAlgorithmSuite([naive])),
                },
                sym_shape_eval_pass={"encode": HintBasedSymShapeEvalPass()},
                propagate_device_config=PropagateDeviceConfig(skip_d2h_for_method_outputs={"decode": True}),
            ),
        )
    )
    assert recipe.compile.model_dump(exclude_defaults=True) == {}
    (payload,) = recipe.specializations
    encode, decode = payload.methods["encode"], payload.methods["decode"]
    assert encode.layout == {"alloc_graph_input": False, "sym_shape_eval": "hint_based", "tensor_alignment": 64}
    assert decode.layout == {"memory_planning_algo": "naive", "skip_d2h_for_method_outputs": True}
    assert (encode.target, decode.target) == (None, "xnnpack")


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({}, {"layers": ("linear", "embedding")}),
        ({"filter_fn": lambda _module, _name: True}, None),
    ],
)
def test_core_ml_codebooks(options, layers):
    """The layers that Core ML's recipe quantizes by default, and those of a function that its caller gives."""
    kind = CoreMLRecipeType.CODEBOOK_WEIGHT_ONLY
    given = ExportRecipe.get_recipe(kind, bits=3, block_size=[1, 16], skip_ops_for_coreml_delegation=["add"], **options)
    if layers is None:
        with pytest.raises(ConfigError, match="imported by its name"):
            pteforge.recipe_from_executorch(given)
        return
    recipe = pteforge.recipe_from_executorch(given)
    (transform,) = recipe.source_transforms
    assert transform.model_dump(include=set(layers)) == layers
    assert recipe.specializations[0].options["skip_operators"] == ["add"]


@pytest.mark.parametrize(
    ("partitioner", "options"),
    [
        (CoreMLPartitioner, {}),
        (lambda: CoreMLPartitioner(compile_specs=CoreMLBackend.generate_compile_specs()), {}),
        (
            lambda: CoreMLPartitioner(
                skip_ops_for_coreml_delegation=["aten.add.Tensor"], take_over_mutable_buffer=False
            ),
            {"take_over_mutable_buffers": False, "skip_operators": ["aten.add.Tensor"]},
        ),
        (
            lambda: CoreMLPartitioner(
                compile_specs=CoreMLBackend.generate_compile_specs(
                    minimum_deployment_target=coremltools.target.iOS17,
                    compute_unit=coremltools.ComputeUnit.CPU_AND_NE,
                    compute_precision=coremltools.precision.FLOAT32,
                )
            ),
            {
                "minimum_deployment_target": "iOS17",
                "compute_unit": "cpu_and_ne",
                "compute_precision": "float32",
            },
        ),
    ],
)
def test_core_ml_partitioners(partitioner, options):
    """All that a Core ML partitioner can be told is an option; files that only Apple's devices run need no proof."""
    recipe = pteforge.recipe_from_executorch(lowering(partitioners=[partitioner()]))
    (specialization,) = recipe.specializations
    assert (specialization.target, specialization.options) == ("coreml", options)
    assert not recipe.verify.required
    assert pteforge.recipe_from_executorch(lowering(partitioners=[XnnpackPartitioner()])).verify.required


def test_other_core_ml_partitioners():
    """A compile spec that no option makes is an error."""
    specs = CoreMLBackend.generate_compile_specs(pass_names=["common::const_elimination"])
    with pytest.raises(ConfigError, match=r"no option .*'pass_pipeline'"):
        pteforge.recipe_from_executorch(lowering(partitioners=[CoreMLPartitioner(compile_specs=specs)]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Function _TORCH_OPS_REGISTRY", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_files_for_other_machines(net, example, store):
    """A recipe with a Core ML partitioner only makes a file here, and says that nothing ran it."""
    result = pteforge.export(
        net, example, recipe=lowering(partitioners=[CoreMLPartitioner()]), strict=False, store=store
    )
    assert b"CoreMLBackend" in result.pte
    assert "its edge program ran instead" in result.figures.not_run["the file"]


@pytest.mark.parametrize("partitioners", [None, [XnnpackPartitioner()], [VulkanPartitioner(), XnnpackPartitioner()]])
def test_external_constants(partitioners):
    """External constants are `external_data` of the recipe, in whatever the partitioners."""
    given = ExportRecipe(
        lowering_recipe=LoweringRecipe(partitioners=partitioners),
        executorch_backend_config=ExecutorchBackendConfig(external_constants=True),
    )
    output = pteforge.recipe_from_executorch(given).output
    assert (output.form, output.external_data) == ("plain", True)
    assert not pteforge.recipe_from_executorch(ExportRecipe()).output.external_data


@pytest.mark.parametrize("field", REFUSED)
def test_what_cannot_be_said(field):
    """Functions and unknown objects are an error with the name of their field."""
    with pytest.raises(ConfigError) as caught:
        pteforge.recipe_from_executorch(REFUSED[field]())
    assert caught.value.field == f"ExportRecipe.{field}"


def test_training():
    """For a recipe that trains, the message says what to pass instead: the prepared and trained module."""
    given = quantizing(is_qat=True, train_fn=lambda _module: None)
    with pytest.raises(ConfigError, match="the module that prepare_qat_pt2e made"):
        pteforge.recipe_from_executorch(given)


def test_lowering_by_an_export_recipe(net, example, exported, store):
    """An ExportRecipe, or its type, lowers to the file of the shipped recipe, up to the last of its stages."""
    given = ExportRecipe.get_recipe(XNNPackRecipeType.FP32)
    given.strict = False
    result = pteforge.export(net, example, recipe=given, name="net", store=store)
    assert (result.recipe, result.pte) == ("xnnpack_fp32", exported.pte)
    given.pipeline_stages = [StageType.TORCH_EXPORT, StageType.TO_EDGE]
    cut = pteforge.export(net, example, recipe=given, name="net", store=store)
    assert [stage.stage for stage in cut.stages] == ["export", "fold_batch_norms", "edge"]
    by_type = pteforge.export(net, example, recipe=XNNPackRecipeType.FP32, name="net", store=store)
    assert (by_type.recipe, by_type.pte) == ("xnnpack-fp32", exported.pte)
    assert load_preset("xnnpack-fp32").recipe.specializations[0].target == "xnnpack"


def test_strict_is_theirs(net, example, store):
    """An ExportRecipe traces in strict mode by default; the caller's `strict` overrides it."""
    given = ExportRecipe.get_recipe(XNNPackRecipeType.FP32)
    programs = [
        pteforge.export(net, example, recipe=given, strict=strict, store=store, until="export").exported_program()
        for strict in (None, True, False)
    ]
    names = [[node.name for node in program.graph.nodes] for program in programs]
    assert names[0] == names[1]
