"""Matrices that are packed and dequantized some rows at a time."""

import inspect

import pytest
import torch
from executorch.backends.xnnpack.operators.node_visitor import NodeVisitor
from executorch.exir.passes import _quant_patterns_and_replacements as _patterns  # noqa: F401 - registers an operator
from pteforge.tasks.upstream.torchao import dequantization_by_rows, packed_by_rows
from pteforge.tasks.upstream.xnnpack_passes import pack_by_rows
from torchao.quantization.quant_primitives import dequantize_affine


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("group", [8, 32, 64])
def test_rows_dequantize_as_the_whole(monkeypatch, group, zeros):
    """Some rows at a time give the numbers that the whole gives."""
    values = torch.randint(-8, 8, (50, 64), dtype=torch.int8)
    scale = torch.rand(50, 64 // group)
    points = torch.randint(-8, 8, scale.shape, dtype=torch.int8) if zeros else None
    arguments = (values, (1, group), scale, points, torch.int8, -8, 7)
    expected = dequantize_affine(*arguments)
    monkeypatch.setattr("pteforge.tasks.upstream.torchao._LEAST_BY_ROWS", 1000)
    with dequantization_by_rows():
        assert torch.equal(dequantize_affine(*arguments), expected)


def of_embedding(bits):
    """The operator that packs tables of embeddings."""
    return lambda matrix: torch.ops.quant_fusion._pack_embedding_weight(matrix, bits)


XNNPACK = inspect.unwrap(NodeVisitor.convert_to_qc4w)  # a test before this one may have replaced it
CASES = [
    *((XNNPACK, shape) for shape in [(1, 2), (7, 8), (16, 33), (5, 400), (3, 5, 1)]),
    *((of_embedding(bits), shape) for bits in (2, 4) for shape in [(1, 8), (33, 12), (5, 400)]),
]


@pytest.mark.parametrize(("pack", "shape"), CASES)
def test_packing_by_rows(pack, shape, monkeypatch):
    """Whatever the number of rows and columns, packing by rows makes the bytes that packing the whole makes."""
    matrix = torch.randint(-2, 2, shape, dtype=torch.int8)
    monkeypatch.setattr("pteforge.tasks.upstream.torchao._AT_ONCE", 64)
    largest = []
    packed = packed_by_rows(matrix, lambda part: largest.append(part.numel()) or pack(part))
    assert torch.equal(packed, pack(matrix))
    assert packed.dtype is torch.uint8
    assert packed.untyped_storage().nbytes() == packed.nbytes
    assert matrix.dim() != 2 or max(largest) <= max(64, shape[1])


def test_packing_out_of_range(monkeypatch):
    """XNNPACK refuses weights of more than 4 bits in any row."""
    monkeypatch.setattr("pteforge.tasks.upstream.torchao._AT_ONCE", 64)
    matrix = torch.zeros(32, 8, dtype=torch.int8)
    matrix[31, 7] = 8
    with pytest.raises(AssertionError, match="out of"):
        packed_by_rows(matrix, XNNPACK)


def test_xnnpack_packs_by_rows():
    """Upstream's function is the one that its node visitors call, and is replaced."""
    pack_by_rows()
    assert NodeVisitor.convert_to_qc4w.func is packed_by_rows
