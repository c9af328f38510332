"""Quantized tables of embeddings: packed, looked up by the runtime's operators for them, whoever runs the rest."""

import copy

import pytest
import torch
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.quantize.torchao_configs import TorchaoParams
from pteforge.tests.lowering import recipe
from pteforge.tests.zoo.networks import FunctionOfLayers

GROUPS = {"per_group": 32}


def table(dtype="int8", **fields):
    """Fields of torchao's config for a table of 64 columns, in groups of half a row unless it has 8 bits."""
    return {"weight_dtype": dtype, "granularity": {"per_axis": 0} if dtype == "int8" else GROUPS, **fields}


def test_a_table_that_is_read_in_another_way(stages):
    """It stays in floating point in all methods that share it, and the figures say so; other layers are quantized."""
    embeddings = {"torchao": "intx_weight_only", "params": table(), "layers": ["embedding"]}
    asked = recipe("xnnpack", source_transforms=[embeddings], verify={"min_sqnr_db": 20})
    lowered = stages.lower("builders:reads_its_table", asked)
    assert ["'table' stays in floating point" in note for note in lowered.figures["notes"]] == [True, True]
    for method in ("encode", "step"):
        program = lowered.program(f"source_transform/{method}")
        assert program.state_dict["table.weight"].dtype == torch.float32


def transformed(module, fields):
    """The module with quantized embeddings, ready for export."""
    from pteforge.tasks.quantize import module_transforms

    given = TorchaoParams(config="IntxWeightOnlyConfig", fields=fields, layers=("embedding",))
    return module_transforms.transform_copy(module, [given])[0]


def fused(module, inputs):
    """A module as a program in the edge dialect: as it is, and after `fuse_embeddings`."""
    from executorch.exir import to_edge
    from pteforge.tasks.programs.embeddings import fuse_embeddings

    edge = to_edge(torch.export.export(module, inputs)).exported_program()
    before = copy.deepcopy(edge)
    fuse_embeddings(edge)
    return before, edge


def operators(program):
    return [str(node.target._op) for node in program.graph.nodes if hasattr(node.target, "_op")]


@pytest.mark.parametrize(
    ("fields", "operator", "size"),
    [
        (table(), "embedding_byte.default", 64),
        (table("int4"), "embedding_4bit.default", 32),
        (table("int4", mapping_type="asymmetric", scale_dtype="float16"), "embedding_4bit.default", 32),
        (table("int4", scale_dtype="float16"), "embedding_4bit.dtype", 32),
        (table("int2"), "embedding_2bit.default", 16),
        (table("int6"), "embedding_byte.default", 64),
    ],
)
def test_lookups(fields, operator, size):
    """A lookup computes what it did, to the bit, in a table with as many bits as its weights have."""
    torch.manual_seed(0)
    inputs = (torch.arange(16).reshape(2, 8),)
    before, after = fused(transformed(torch.nn.Sequential(torch.nn.Embedding(16, 64)), fields), inputs)
    assert operators(after) == [f"quantized_decomposed.{operator}"]
    # in Python, the operators with another data type for their output compute in that of the scales
    tolerance = 2e-3 if operator.endswith("dtype") else 0
    assert torch.allclose(after.module()(*inputs), before.module()(*inputs), rtol=tolerance, atol=0)
    (packed,) = (value for value in after.state_dict.values() if value.dtype in (torch.int8, torch.uint8))
    assert packed.shape == (16, size)
    assert len(after.graph_signature.input_specs) == len(after.state_dict) + 1


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda net, one, other: net.words(one) + net.words(other), 0),
        (lambda net, one, other: torch.nn.functional.linear(net.words(one), net.words.weight) + other.sum(), 2),
    ],
    ids=["looked up twice", "read whole"],
)
def test_two_uses_of_a_table(function, left):
    """A table that is looked up twice is packed once; one that is read as a whole stays as it is."""
    torch.manual_seed(0)
    inputs = (torch.arange(16), torch.arange(16).flip(0))
    module = FunctionOfLayers(function, words=torch.nn.Embedding(16, 64))
    before, after = fused(transformed(module, table("int4")), inputs)
    assert operators(after).count("torchao.dequantize_affine.default") == left
    assert torch.equal(after.module()(*inputs), before.module()(*inputs))


def test_written_out_for_portable_kernels():
    """Where torchao's operators are written out, those of tables stay, and no operator of ours is left."""
    from pteforge.tasks.programs.graphs import decompose_affine

    inputs = (torch.arange(16).reshape(2, 8),)
    module = transformed(torch.nn.Sequential(torch.nn.Embedding(16, 64)), table())
    program = torch.export.export(module, inputs)
    written_out = decompose_affine(program)
    for made in (program, written_out):
        names = [str(node.target) for node in made.graph.nodes if node.op == "call_function"]
        assert names == ["torchao.dequantize_affine.default", "aten.embedding.default"]
    assert torch.equal(written_out.module()(*inputs), program.module()(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "operator", "bits"),
    [("int8", "embedding_byte.out", 8), ("int4", "embedding_4bit.out", 4), ("int2", "embedding_2bit.out", 2)],
)
def test_in_files(dtype, operator, bits, lower):
    """Both payloads of a fat file run on the runtime's operators, and have one packed table between them."""
    transform = {"torchao": "intx_weight_only", "params": table(dtype), "layers": ["embedding"]}
    given = recipe("xnnpack", "portable", source_transforms=[transform], verify={"min_sqnr_db": bits})
    lowered = lower("builders:dictionary", given)
    for payload in lowered.payloads.values():
        method = read_pte(payload).methods[0]
        assert f"quantized_decomposed::{operator}" in method.operators
        assert "aten::embedding.out" not in method.operators
        assert max(constant.extent.size for constant in read_pte(payload).constants) == 256 * 64 * bits // 8
    assert len(lowered.file) < sum(map(len, lowered.payloads.values())) - 256 * 64 * bits // 8 + 4096
