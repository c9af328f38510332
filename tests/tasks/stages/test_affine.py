"""torchao's quantized operators: written out for portable kernels, refused where nobody computes them."""

from __future__ import annotations

import pytest
from pteforge.errors import TargetError
from pteforge.tasks.stages.affine import decompose_affine
from pteforge.tasks.stages.module_transforms import transformed
from pteforge.tasks.stages.torchao_values import make_config

INT4 = {"weight_dtype": "int4", "weight_granularity": {"per_group": 32}}


def recipe(config, fields, *targets):
    """A recipe for a fat file, or for a plain one."""
    return {
        "source_transforms": [{"torchao": config, "params": fields}],
        "specializations": [{"target": target} for target in targets],
        "output": {"form": "fat" if len(targets) > 1 else "plain"},
        "verify": {"min_sqnr_db": 12},
    }


@pytest.mark.parametrize("config", ["Int8DynamicActivationIntxWeightConfig", "IntxWeightOnlyConfig"])
def test_the_same_values(config):
    """Written out, a program computes what it computed before, to the bit, with no operator of torchao's left."""
    import torch
    from pteforge.tasks.source_params import TorchaoParams

    granularity = "weight_granularity" if "Dynamic" in config else "granularity"
    fields = {"weight_dtype": "int4", granularity: {"per_group": 16}}
    torch.manual_seed(0)
    inputs = (torch.randn(3, 64),)
    module, _ = transformed(torch.nn.Linear(64, 8), [TorchaoParams(config=config, fields=fields)])
    program = torch.export.export(module, inputs, dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=9)},))
    written_out = decompose_affine(program)
    assert any("torchao" in str(node.target) for node in program.graph.nodes)
    assert not any("torchao" in str(node.target) for node in written_out.graph.nodes)
    assert torch.equal(written_out.module()(*inputs), program.module()(*inputs))
    assert len(written_out.range_constraints) == len(program.range_constraints) == 1


@pytest.mark.slow
def test_int4_in_a_fat_file(stages):
    """A file for XNNPACK falls back to portable kernels; both are verified, on any batch, and come out alike."""
    given = recipe("int8_dynamic_activation_intx_weight", INT4, "xnnpack", "portable")
    lowered = stages.lower("transform_models:layer_of_any_batch", given)
    figures = lowered.provenance["verification"]["figures"]["payloads"]
    assert figures.keys() == {"xnnpack", "portable"}
    assert figures["portable"]["sqnr_db"] == pytest.approx(figures["xnnpack"]["sqnr_db"], abs=1)


@pytest.mark.slow
def test_what_a_target_does_not_take(stages):
    """Quantized operators that XNNPACK does not know are named before a file is made."""
    with pytest.raises(TargetError, match=r"'forward': no backend took all of torchao.dequantize_affine.default"):
        stages.lower("transform_models:stack", recipe("intx_weight_only", {"weight_dtype": "int8"}, "xnnpack"))


@pytest.mark.slow
def test_what_a_backend_would_fail_on(stages):
    """Layers whose rows are no group that XNNPACK takes are named with their sizes before anything is delegated."""
    fields = {"weight_dtype": "int4", "weight_granularity": {"per_axis": 0}}
    given = recipe("int8_dynamic_activation_intx_weight", fields, "xnnpack")
    with pytest.raises(TargetError, match=r"multiples of 32, and these layers have other ones: '1' \(30\);"):
        stages.lower("transform_models:odd_stack", given)


@pytest.mark.slow
def test_weights_alone(stages):
    """Weights in int8 alone need no operator that a backend would have to know: XNNPACK's file is smaller as well."""
    given = recipe("int8_weight_only", {}, "xnnpack") | {"verify": {"min_sqnr_db": 30}}
    plain = stages.lower("transform_models:stack", {"specializations": [{"target": "xnnpack"}]})
    assert len(stages.lower("transform_models:stack", given).file) < 0.7 * len(plain.file)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"granularity": {"per_group": 32}}, "PerGroup(group_size=32)"),
        ({"granularity": {"per_axis": 0}}, "PerAxis(axis=0)"),
    ],
)
def test_granularities(fields, expected):
    """A granularity with a number is a mapping of its name in snake case."""
    assert repr(make_config("IntxWeightOnlyConfig", fields).granularity) == expected


def test_other_values():
    """Data types and members of enums go by name, whatever the case; a list stands for one of granularities."""
    import torch

    config = make_config("IntxWeightOnlyConfig", {"weight_dtype": "int4", "mapping_type": "asymmetric"})
    assert (config.weight_dtype, config.mapping_type.name) == (torch.int4, "ASYMMETRIC")
    listed = make_config("Int8DynamicActivationInt8WeightConfig", {"granularity": ["per_row", "per_tensor"]})
    assert [type(each).__name__ for each in listed.granularity] == ["PerRow", "PerTensor"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"granularity": {"per_grou": 32}}, "granularity is a granularity, .*did you mean 'per_group'"),
        ({"granularity": {"per_group": "32"}}, "per_group takes whole numbers, not '32'"),
        ({"granularity": "per_group"}, "write it as {per_group: NUMBER}"),
        ({"granularity": {"per_group": 32, "per_axis": 0}}, "is a granularity, such as"),
        ({"granularity": 3}, "granularity must be Granularity, not 3"),
        ({"mapping_type": "odd"}, "MappingType has no 'odd'; known here: asymmetric, symmetric"),
        ({"weight_dtype": 4}, "weight_dtype must be dtype, not 4"),
        ({"version": True}, "version must be int, not True"),
        ({"scale_dtype": "float32x"}, "did you mean 'float32'"),
    ],
)
def test_values_of_other_types(fields, message):
    """A value that is not of its field's type is refused with what the field takes."""
    with pytest.raises(TargetError, match=message):
        make_config("IntxWeightOnlyConfig", fields)


def test_checked_before_work():
    """A worker can check configs without lowering anything."""
    from pteforge.tasks.stages.entry import check_transforms

    check_transforms([["IntxWeightOnlyConfig", {"weight_dtype": "int4"}]])
    with pytest.raises(TargetError, match="refuses"):
        check_transforms(
            [["IntxWeightOnlyConfig", {"weight_dtype": "int4"}], ["IntxWeightOnlyConfig", {"weight_dtype": "int32"}]]
        )
