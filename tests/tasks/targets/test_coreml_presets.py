"""Core ML's shipped recipes ask for what `executorch.export`'s recipes of the same kind do."""

from __future__ import annotations

import pteforge
import pytest
from pteforge.configs import Recipe
from pteforge.configs.extends import read_preset
from pteforge.configs.nodes import plain
from pteforge.errors import ConfigError
from pteforge.tasks.targets import find_target
from pteforge.tasks.targets.quantizers import check_quantizers, make_quantizer
from pteforge.tasks.torchao_configs import class_name

PRESETS = {
    "coreml-fp32": ("FP32", {}),
    "coreml-fp16": ("FP16", {}),
    "coreml-int8-static": ("PT2E_INT8_STATIC", {}),
    "coreml-int8-weight-only": ("PT2E_INT8_WEIGHT_ONLY", {}),
    "coreml-int4-weight-only-per-channel": ("TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL", {}),
    "coreml-int4-weight-only-per-group": ("TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP", {}),
    "coreml-int8-weight-only-per-channel": ("TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL", {}),
    "coreml-int8-weight-only-per-group": ("TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP", {}),
    "coreml-codebook-weight-only": ("CODEBOOK_WEIGHT_ONLY", {"bits": 4, "block_size": [-1, 16]}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This API and all of its related functionality")  # ExecuTorch's, of its recipes
@pytest.mark.parametrize("name", PRESETS)
def test_as_upstreams_recipe(name):
    """The converter gets the same settings, and the same quantizer or transform goes before it.

    Their recipe itself is translated to what the shipped one says, but for the one that chooses layers by a function.
    """
    from executorch.backends.apple.coreml.recipes import CoreMLRecipeProvider, CoreMLRecipeType
    from pteforge.tasks.stages.torchao_values import make_config

    kind, arguments = PRESETS[name]
    theirs = CoreMLRecipeProvider().create_recipe(CoreMLRecipeType[kind], **arguments)
    ours = Recipe.model_validate(plain(read_preset(name)))
    (partitioner,) = find_target("coreml", dict(ours.specializations[0].options)).partitioners()
    (expected,) = theirs.lowering_recipe.partitioners
    assert settings(partitioner) == settings(expected)
    wanted = theirs.quantization_recipe
    quantizers = [make_quantizer(check_quantizers(ours.quantize))._config] if ours.quantize else []
    assert quantizers == [each._config for each in (wanted and wanted.quantizers) or []]
    transforms = [make_config(class_name(each.torchao), each.params) for each in ours.source_transforms]
    assert transforms == [each.ao_base_config for each in (wanted and wanted.ao_quantization_configs) or []]

    if wanted and any(each.filter_fn for each in wanted.ao_quantization_configs or []):
        with pytest.raises(ConfigError, match="filter_fn: cannot be said"):
            pteforge.recipe_from_executorch(theirs)
        return
    translated = pteforge.recipe_from_executorch(theirs)
    (own,), (coreml, _) = translated.specializations, ours.specializations
    defaults = find_target("coreml", {}).options.model_dump()
    assert defaults | own.options == defaults | coreml.options
    assert check_quantizers(translated.quantize) == check_quantizers(ours.quantize)
    assert [each.torchao for each in translated.source_transforms] == [
        class_name(each.torchao) for each in ours.source_transforms
    ]


def settings(partitioner) -> tuple[object, ...]:
    """What a partitioner and the converter behind it are told."""
    specs = {spec.key: spec.value for spec in partitioner.delegation_spec.compile_specs}
    return specs, partitioner.take_over_mutable_buffer, partitioner.lower_full_graph
