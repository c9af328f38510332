"""Recipes of `executorch.export` become recipes of ours, or say which field cannot."""

from __future__ import annotations

import json
import warnings

import pteforge
import pytest
from pteforge.api.recipes import asked_recipe
from pteforge.configs import load_zoo, preset_names
from pteforge.configs.recipe_file import load_preset
from pteforge.errors import ConfigError
from pteforge.tasks.targets.find import find_quantizer_options
from pteforge.tasks.torchao_configs import class_name

pytestmark = pytest.mark.filterwarnings("ignore:This API and all of its related functionality")

with warnings.catch_warnings():  # these modules warn when they are imported
    warnings.simplefilter("ignore")
    import executorch.backends.xnnpack.recipes  # noqa: F401 - registers the types
    import torch
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.backends.xnnpack.recipes.xnnpack_recipe_types import XNNPackRecipeType
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, naive
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass
    from executorch.export import (
        AOQuantizationConfig,
        ExportRecipe,
        LoweringRecipe,
        QuantizationRecipe,
        RecipeType,
        StageType,
    )
    from executorch.export.recipe import Mode
    from pteforge.tasks.stages.torchao_values import make_config
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig


class Unknown(RecipeType):
    """A backend that we know nothing of."""

    FP8 = "nowhere_fp8"

    @classmethod
    def get_backend_name(cls) -> str:
        """Its name."""
        return "nowhere"


def quantizers(recipe):
    """Names and options of a recipe's quantizers, defaults filled in."""
    chosen = recipe.quantize.chosen if recipe.quantize else ()
    return [(each.quantizer, find_quantizer_options(each.quantizer, dict(each.options))) for each in chosen]


@pytest.mark.parametrize("kind", list(XNNPackRecipeType), ids=lambda kind: kind.name)
def test_recipe_types(kind):
    """Every type of XNNPACK's is a shipped recipe; the ExportRecipe that it gives says the same as that one."""
    ours = pteforge.recipe_from_executorch(kind)
    theirs = pteforge.recipe_from_executorch(ExportRecipe.get_recipe(kind))
    assert ours.specializations == theirs.specializations
    assert quantizers(ours) == quantizers(theirs)
    assert ours.verify.min_sqnr_db == theirs.verify.min_sqnr_db
    for transform, translated in zip(ours.source_transforms, theirs.source_transforms, strict=True):
        assert class_name(transform.torchao) == translated.torchao
        made = [make_config(translated.torchao, each.params) for each in (transform, translated)]
        assert made[0] == made[1]


def test_shipped_recipes_have_a_type():
    """Every shipped recipe but the portable one is that of a type, and every type's recipe is shipped."""
    from pteforge.configs.presets.recipe_types import RECIPE_TYPES

    assert {*RECIPE_TYPES.values(), "portable-fp32"} == set(preset_names())


@pytest.mark.parametrize("kind", list(XNNPackRecipeType), ids=lambda kind: kind.name)
def test_recipe_types_by_name(kind, tmp_path):
    """Wherever a recipe is named, the value of a recipe type names the same one: to lower with, in a zoo, to extend."""
    by_name = asked_recipe(kind.value).planned
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


def test_a_type_that_is_not_known():
    """A type without a recipe of ours is refused, with those that have one."""
    with pytest.raises(ConfigError, match="there is no recipe for the type 'nowhere_fp8'; known: xnnpack_fp32, "):
        pteforge.recipe_from_executorch(Unknown.FP8)
    with pytest.raises(ConfigError, match="recipe: is a dict"):
        pteforge.recipe_from_executorch({})


def test_combined():
    """What `combine` makes of several backends is a fat file with a payload for each, and the portable one at last."""
    vulkan = ExportRecipe(name="vulkan", lowering_recipe=LoweringRecipe(partitioners=[VulkanPartitioner()]))
    xnnpack = ExportRecipe(name="xnnpack", lowering_recipe=LoweringRecipe(partitioners=[XnnpackPartitioner()]))
    recipe = pteforge.recipe_from_executorch(ExportRecipe.combine([vulkan, xnnpack]))
    assert recipe.output.form == "fat"
    assert [each.payload for each in recipe.specializations] == ["vulkan", "xnnpack", "portable"]
    twice = ExportRecipe(lowering_recipe=LoweringRecipe(partitioners=[XnnpackPartitioner(), XnnpackPartitioner()]))
    names = [each.payload for each in pteforge.recipe_from_executorch(twice).specializations]
    assert names == ["xnnpack-0", "xnnpack-1", "portable"]


def test_lowering_by_a_combined_recipe(net, example, store):
    """The file has all of them: devices with the first backend run that, this machine the next."""
    combined = ExportRecipe.combine(
        [
            ExportRecipe(name="vulkan", lowering_recipe=LoweringRecipe(partitioners=[VulkanPartitioner()])),
            ExportRecipe(name="xnnpack", lowering_recipe=LoweringRecipe(partitioners=[XnnpackPartitioner()])),
        ]
    )
    result = pteforge.export(net, example, recipe=combined, store=store, strict=False)
    assert [each["name"] for each in result.provenance["file"]["payloads"]] == ["vulkan", "xnnpack", "portable"]
    assert result.load().payload == "xnnpack"
    assert set(result.figures.payloads) == {"xnnpack", "portable"}


def test_lowering_by_partitioners_of_methods(nets, store):
    """One method goes to the backend, the other to the portable kernels, in one payload."""
    partitioners = {"encode": [], "decode": [XnnpackPartitioner()]}
    given = ExportRecipe(strict=False, lowering_recipe=LoweringRecipe(partitioners=partitioners))
    result = pteforge.export(nets.conversation(), recipe=given, store=store)
    assert {each.method: each.partitions for each in result.delegation()} == {"encode": 0, "decode": 1}


def test_partitioners_by_method():
    """A mapping gives methods targets of their own; what it does not delegate is portable."""
    partitioners = {
        "prefill": [XnnpackPartitioner(per_op_mode=True)],
        "decode": [],
        "embed": [VulkanPartitioner(), XnnpackPartitioner(per_op_mode=True)],
    }
    recipe = pteforge.recipe_from_executorch(ExportRecipe(lowering_recipe=LoweringRecipe(partitioners=partitioners)))
    (payload,) = recipe.specializations
    assert payload.target == "portable"
    assert (payload.methods["prefill"].target, payload.methods["prefill"].options) == (
        "xnnpack",
        {"per_operator": True},
    )
    assert payload.methods["decode"].delegate is False
    assert payload.methods["embed"].target == "vulkan+xnnpack"
    assert payload.methods["embed"].options == {"vulkan": {}, "xnnpack": {"per_operator": True}}


def test_configs():
    """Edge and backend configuration become options, field by field."""
    recipe = pteforge.recipe_from_executorch(
        ExportRecipe(
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
    assert [each.target for each in recipe.specializations] == ["portable"]


def quantizer_with_a_filter():
    """Chooses operators by a function."""
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    quantizer.set_filter_function(bool)
    return quantizer


REFUSED = {
    "aten_transform_passes": lambda: ExportRecipe(aten_transform_passes=[lambda _name, program: program]),
    "lowering_recipe.edge_transform_passes[0]": lambda: ExportRecipe(
        lowering_recipe=LoweringRecipe(edge_transform_passes=[lambda _name, _program: []])
    ),
    "lowering_recipe.edge_manager_transform_passes": lambda: ExportRecipe(
        lowering_recipe=LoweringRecipe(edge_manager_transform_passes=[lambda _manager: []])
    ),
    "lowering_recipe.partitioners[0]": lambda: ExportRecipe(
        lowering_recipe=LoweringRecipe(partitioners=[VulkanPartitioner({"texture_limits": (1, 2, 3)})])
    ),
    "lowering_recipe.partitioners[1]": lambda: ExportRecipe(
        lowering_recipe=LoweringRecipe(
            partitioners=[
                VulkanPartitioner(),
                VulkanPartitioner(operator_blocklist=[torch.ops.aten.relu.default]),
            ]
        )
    ),
    "quantization_recipe.is_qat": lambda: ExportRecipe(quantization_recipe=QuantizationRecipe(is_qat=True)),
    "quantization_recipe.calibration_inputs_fn": lambda: ExportRecipe(
        quantization_recipe=QuantizationRecipe(calibration_inputs_fn=list)
    ),
    "quantization_recipe.quantizers[0].filter_fn": lambda: ExportRecipe(
        quantization_recipe=QuantizationRecipe(quantizers=[quantizer_with_a_filter()])
    ),
    "quantization_recipe.ao_quantization_configs[0].filter_fn": lambda: ExportRecipe(
        quantization_recipe=QuantizationRecipe(
            ao_quantization_configs=[
                AOQuantizationConfig(Int8DynamicActivationIntxWeightConfig(), lambda _module, _name: True)
            ]
        )
    ),
    "executorch_backend_config.passes": lambda: ExportRecipe(
        executorch_backend_config=ExecutorchBackendConfig(passes=[lambda module: module])
    ),
    "executorch_backend_config.external_constants": lambda: ExportRecipe(
        executorch_backend_config=ExecutorchBackendConfig(external_constants=lambda _node: "weights")
    ),
    "executorch_backend_config.external_mutable_weights": lambda: ExportRecipe(
        executorch_backend_config=ExecutorchBackendConfig(external_mutable_weights=True)
    ),
    "executorch_backend_config.sym_shape_eval_pass": lambda: ExportRecipe(
        executorch_backend_config=ExecutorchBackendConfig(
            sym_shape_eval_pass={"forward": ConstraintBasedSymShapeEvalPass()}
        )
    ),
    "executorch_backend_config.memory_planning_pass": lambda: ExportRecipe(
        executorch_backend_config=ExecutorchBackendConfig(memory_planning_pass={"forward": MemoryPlanningPass()})
    ),
    "pipeline_stages": lambda: ExportRecipe(
        quantization_recipe=QuantizationRecipe(), pipeline_stages=[StageType.TORCH_EXPORT, StageType.TO_EDGE]
    ),
}


@pytest.mark.parametrize("partitioners", [None, [XnnpackPartitioner()], [VulkanPartitioner(), XnnpackPartitioner()]])
def test_external_constants(partitioners):
    """Constants outside are the recipe's weights beside the file, in each form of output."""
    given = ExportRecipe(
        lowering_recipe=LoweringRecipe(partitioners=partitioners),
        executorch_backend_config=ExecutorchBackendConfig(external_constants=True),
    )
    output = pteforge.recipe_from_executorch(given).output
    several = partitioners is not None and len(partitioners) > 1
    assert (output.form, output.external_data) == ("fat" if several else "plain", True)
    assert not pteforge.recipe_from_executorch(ExportRecipe()).output.external_data


def test_debug_mode():
    """A recipe in debug mode stays one."""
    assert pteforge.recipe_from_executorch(ExportRecipe(mode=Mode.DEBUG)).debug
    assert not pteforge.recipe_from_executorch(ExportRecipe()).debug


@pytest.mark.parametrize("field", REFUSED)
def test_what_cannot_be_said(field):
    """Functions and unknown objects are refused by the name of their field."""
    with pytest.raises(ConfigError) as caught:
        pteforge.recipe_from_executorch(REFUSED[field]())
    assert caught.value.field == f"ExportRecipe.{field}"


def test_training_is_not_part_of_a_recipe():
    """Where a recipe would train, the message says what to give instead: the prepared module, trained."""
    given = ExportRecipe(quantization_recipe=QuantizationRecipe(is_qat=True, train_fn=lambda _module: None))
    with pytest.raises(ConfigError, match="give the module that prepare_qat_pt2e made once you have trained it"):
        pteforge.recipe_from_executorch(given)


def test_lowering_by_an_export_recipe(net, example, exported, store):
    """An ExportRecipe lowers to the bytes that `executorch.export` gives, as far as its stages say."""
    given = ExportRecipe.get_recipe(XNNPackRecipeType.FP32)
    given.strict = False
    result = pteforge.export(net, example, recipe=given, name="net", store=store)
    assert (result.recipe, result.pte) == ("xnnpack_fp32", exported.pte)
    given.pipeline_stages = [StageType.TORCH_EXPORT, StageType.TO_EDGE]
    cut = pteforge.export(net, example, recipe=given, name="net", store=store)
    assert [stage.stage for stage in cut.stages] == ["export", "edge"]
    by_type = pteforge.export(net, example, recipe=XNNPackRecipeType.FP32, name="net", store=store)
    assert (by_type.recipe, by_type.pte) == ("xnnpack-fp32", exported.pte)
    assert load_preset("xnnpack-fp32").recipe.specializations[0].target == "xnnpack"


def test_strict_is_theirs(net, example, store):
    """An ExportRecipe traces in strict mode unless it says otherwise; the caller's word counts more."""
    given = ExportRecipe.get_recipe(XNNPackRecipeType.FP32)
    programs = [
        pteforge.export(net, example, recipe=given, strict=strict, store=store, until="export").exported_program()
        for strict in (None, True, False)
    ]
    names = [[node.name for node in program.graph.nodes] for program in programs]
    assert names[0] == names[1]
