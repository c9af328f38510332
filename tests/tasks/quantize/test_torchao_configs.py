"""torchao's configs, read from its sources: they are those that importing it shows."""

import dataclasses

import pytest
from pteforge.configs.quantize import TorchaoTransform
from pteforge.errors import TargetError
from pteforge.tasks.quantize.torchao_configs import check_transform, class_name, torchao_configs


def test_as_imported():
    """Reading finds, with their fields, all public configs that torchao itself defines for `quantize_`."""
    from torchao import quantization
    from torchao.core.config import AOBaseConfig
    from torchao.prototype.quantization.codebook_coreml import CodebookWeightOnlyConfig

    public = {name: getattr(quantization, name) for name in quantization.__all__ if name.endswith("Config")}
    configs = {name: found for name, found in public.items() if isinstance(found, type)}
    expected = {
        name: tuple(field.name for field in dataclasses.fields(found))
        for name, found in configs.items()
        # Those left out are made of other configs, or are torchao's prototypes.
        if issubclass(found, AOBaseConfig) and "Fqn" not in name and "AOPer" not in name
        if "prototype" not in found.__module__
    }
    codebook = tuple(field.name for field in dataclasses.fields(CodebookWeightOnlyConfig))
    assert torchao_configs() == expected | {"CodebookWeightOnlyConfig": codebook}
    assert "Int8DynamicActivationIntxWeightConfig" in expected
    for written in ("Int8WeightOnlyConfig", "int8_weight_only", "int8_weight_only_config"):
        assert class_name(written) == "Int8WeightOnlyConfig"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"torchao": "int8_weights_only"}, "no config 'int8_weights_only'; did you mean 'int8_weight_only'?"),
        ({"torchao": "Int8WeightConfig"}, "no config 'Int8WeightConfig'; did you mean 'Int8WeightOnlyConfig'?"),
        ({"torchao": "nothing"}, "no config 'nothing'; known here: .*intx_weight_only"),
        (
            {"torchao": "int8_weight_only", "params": {"group_siz": 32}},
            "Int8WeightOnlyConfig has no field 'group_siz'; did you mean 'group_size'?",
        ),
        (
            {"torchao": "int8_dynamic_activation_int8_weight"},
            "ExecuTorch does not have; use int8_dynamic_activation_intx_weight with params: {weight_dtype: int8}",
        ),
        (
            {"torchao": "int8_weight_only", "rounding": "gptq"},
            "`rounding: gptq` is for linear layers, with int8_dynamic",
        ),
        ({"torchao": "intx_weight_only", "rounding": "gptq", "layers": ["embedding"]}, "is for linear layers"),
        ({"torchao": "int8_weight_only", "rounding": "hqq"}, "`rounding: hqq` is for linear layers"),
    ],
)
def test_mistakes(given, message):
    """Unknown names of configs and fields are refused with what is near, in the style they were written in."""
    with pytest.raises(TargetError, match=message):
        check_transform(TorchaoTransform.model_validate(given))
