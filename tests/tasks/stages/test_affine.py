"""torchao's quantized operators: written out for portable kernels, refused where nobody computes them."""

import pytest
import torch
from pteforge.errors import TargetError
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.programs.graphs import decompose_affine
from pteforge.tasks.quantize.module_transforms import make_config, transform_copy
from pteforge.tests.lowering import XNNPACK, recipe

INT4 = {"weight_dtype": "int4", "weight_granularity": {"per_group": 32}}
PER_AXIS = {"weight_dtype": "int4", "weight_granularity": {"per_axis": 0}}


def torchao(config, fields, *targets, sqnr=12):
    """A recipe for a fat file, or for a plain one."""
    transforms = [{"torchao": config, "params": fields}]
    return recipe(*targets, source_transforms=transforms, verify={"min_sqnr_db": sqnr})


@pytest.mark.parametrize("config", ["Int8DynamicActivationIntxWeightConfig", "IntxWeightOnlyConfig"])
def test_the_same_values(config):
    """Written out, a program computes what it computed before, to the bit, with no operator of torchao's left."""
    from pteforge.tasks.quantize.torchao_configs import TorchaoParams

    granularity = "weight_granularity" if "Dynamic" in config else "granularity"
    fields = {"weight_dtype": "int4", granularity: {"per_group": 16}}
    torch.manual_seed(0)
    inputs = (torch.randn(3, 64),)
    module, _ = transform_copy(torch.nn.Linear(64, 8), [TorchaoParams(config=config, fields=fields)])
    program = torch.export.export(module, inputs, dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=9)},))
    written_out = decompose_affine(program)
    assert any("torchao" in str(node.target) for node in program.graph.nodes)
    assert not any("torchao" in str(node.target) for node in written_out.graph.nodes)
    assert torch.equal(written_out.module()(*inputs), program.module()(*inputs))
    assert len(written_out.range_constraints) == len(program.range_constraints) == 1


@pytest.mark.slow
def test_int4_in_a_fat_file(lower):
    """A file for XNNPACK falls back to portable kernels; both are verified, on any batch, and come out alike."""
    given = torchao("int8_dynamic_activation_intx_weight", INT4, "xnnpack", "portable")
    lowered = lower("builders:layer_of_any_batch", given)
    figures = lowered.figures["payloads"]
    assert figures.keys() == {"xnnpack", "portable"}
    assert figures["portable"]["sqnr_db"] == pytest.approx(figures["xnnpack"]["sqnr_db"], abs=1)


EIGHT_IN_GROUPS = {"weight_dtype": "int8", "weight_granularity": {"per_group": 32}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("builder", "config", "fields", "message"),
    [
        ("stack", "intx_weight_only", {"weight_dtype": "int8"},
         r"'forward': no backend took all of torchao.dequantize_affine.default"),
        ("odd_stack", "int8_dynamic_activation_intx_weight", PER_AXIS,
         r"multiples of 32, .* and these layers have other groups: '1' \(30\);"),
        ("stack", "int8_dynamic_activation_intx_weight", EIGHT_IN_GROUPS,
         r"int8 weights with a scale per output channel, and these layers have other groups: "),
    ],
)  # fmt: skip
def test_what_xnnpack_does_not_take(builder, config, fields, message, lower):
    """Quantized operators that it does not know, or layers whose sizes it would fail on, are named beforehand."""
    with pytest.raises(TargetError, match=message):
        lower(f"builders:{builder}", torchao(config, fields, "xnnpack"))


@pytest.mark.slow
def test_layers_that_groups_do_not_divide(lower):
    """They have 8 bits, and XNNPACK takes them as it takes those with 4."""
    recipe = {"specializations": [{"target": "xnnpack"}], "quantize_layers": {"linear": "8da4w"}}
    lowered = lower("builders:odd_stack", recipe | {"verify": {"min_sqnr_db": 12}})
    (method,) = read_pte(*lowered.payloads.values()).methods
    assert not method.operators


@pytest.mark.slow
def test_what_vulkan_leaves(lower):
    """Layers of sizes for which GPUs have no shader are decomposed, and the file is made."""
    given = torchao("int8_dynamic_activation_intx_weight", PER_AXIS, "vulkan")
    lowered = lower("builders:odd_stack", given | {"verify": {"required": False, "min_sqnr_db": 12}})
    operators = {name for payload in lowered.payloads.values() for name in read_pte(payload).methods[0].operators}
    assert operators
    assert not any("torchao" in name for name in operators)


@pytest.mark.slow
def test_weights_alone(lower):
    """Weights in int8 alone need no operator that a backend would have to know: XNNPACK's file is smaller as well."""
    given = torchao("int8_weight_only", {}, "xnnpack", sqnr=30)
    plain = lower("builders:stack", XNNPACK)
    assert len(lower("builders:stack", given).file) < 0.7 * len(plain.file)


def test_values():
    """A granularity with a number is a mapping of its name in snake case; a list stands for one of granularities."""
    for written, made in (({"per_group": 32}, "PerGroup(group_size=32)"), ({"per_axis": 0}, "PerAxis(axis=0)")):
        assert repr(make_config("IntxWeightOnlyConfig", {"granularity": written}).granularity) == made
    listed = make_config("Int8DynamicActivationInt8WeightConfig", {"granularity": ["per_row", "per_tensor"]})
    assert [type(granularity).__name__ for granularity in listed.granularity] == ["PerRow", "PerTensor"]
    config = make_config("IntxWeightOnlyConfig", {"weight_dtype": "int4", "mapping_type": "asymmetric"})
    assert (config.weight_dtype, config.mapping_type.name) == (torch.int4, "ASYMMETRIC")


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
    from pteforge.tasks.quantize.module_transforms import check_transforms

    check_transforms([["IntxWeightOnlyConfig", {"weight_dtype": "int4"}]])
    with pytest.raises(TargetError, match="refuses"):
        check_transforms([["IntxWeightOnlyConfig", {"weight_dtype": dtype}] for dtype in ("int4", "int32")])
