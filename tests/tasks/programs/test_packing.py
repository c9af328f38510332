"""Weights of fewer than 8 bits, packed by rows."""

import inspect

import pytest
import torch
from executorch.backends.xnnpack.operators.node_visitor import NodeVisitor
from executorch.exir.passes import _quant_patterns_and_replacements as _patterns  # noqa: F401 - registers an operator
from pteforge.tasks.programs import packing


def of_embedding(bits):
    """The operator that packs tables of embeddings."""
    return lambda weights: torch.ops.quant_fusion._pack_embedding_weight(weights, bits)


XNNPACK = inspect.unwrap(NodeVisitor.convert_to_qc4w)  # a test before this one may have replaced it
CASES = [
    *((XNNPACK, shape) for shape in [(1, 2), (7, 8), (16, 33), (5, 400), (3, 5, 1)]),
    *((of_embedding(bits), shape) for bits in (2, 4) for shape in [(1, 8), (33, 12), (5, 400)]),
]


@pytest.mark.parametrize(("pack", "shape"), CASES)
def test_the_same_bytes(pack, shape, monkeypatch):
    """Whatever the number of rows and columns, packing by rows makes the bytes that packing the whole makes."""
    weights = torch.randint(-2, 2, shape, dtype=torch.int8)
    monkeypatch.setattr(packing, "_AT_ONCE", 64)
    largest = []
    packed = packing.packed_by_rows(weights, lambda part: largest.append(part.numel()) or pack(part))
    assert torch.equal(packed, pack(weights))
    assert packed.dtype is torch.uint8
    assert packed.untyped_storage().nbytes() == packed.nbytes
    assert weights.dim() != 2 or max(largest) <= max(64, shape[1])


def test_out_of_range(monkeypatch):
    """XNNPACK refuses weights of more than 4 bits in any row."""
    monkeypatch.setattr(packing, "_AT_ONCE", 64)
    weights = torch.zeros(32, 8, dtype=torch.int8)
    weights[31, 7] = 8
    with pytest.raises(AssertionError, match="out of"):
        packing.packed_by_rows(weights, XNNPACK)


def test_xnnpack_packs_by_rows():
    """Upstream's function is the one that its node visitors call, and is replaced."""
    from pteforge.tasks.upstream.xnnpack_passes import pack_by_rows

    pack_by_rows()
    assert NodeVisitor.convert_to_qc4w.func is packing.packed_by_rows
