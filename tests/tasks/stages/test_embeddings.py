"""Quantized tables of embeddings: packed, looked up by the runtime's operators for them, whoever runs the rest."""

from __future__ import annotations

import pytest
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.lowering import recipe


def table(dtype="int8", granularity=None, **fields):
    """A source transform of embeddings."""
    params = {"weight_dtype": dtype, "granularity": granularity or {"per_axis": 0}, **fields}
    return {"torchao": "intx_weight_only", "params": params, "layers": ["embedding"]}


GROUPS = {"per_group": 32}


@pytest.mark.parametrize(
    ("given", "operator", "size"),
    [
        (table(), "embedding_byte.out", 1),
        (table("int4", GROUPS), "embedding_4bit.out", 0.5),
        (table("int4", GROUPS, mapping_type="asymmetric"), "embedding_4bit.out", 0.5),
        (table("int2", GROUPS), "embedding_2bit.out", 0.25),
        (table("int6", GROUPS), "embedding_byte.out", 1),
        (table("int8", GROUPS, scale_dtype="float16"), "embedding_byte.dtype_out", 1),
    ],
)
@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_lookups(given, operator, size, target, lower):
    """The file computes what the quantized program does, and stores the table with the bits that its weights have."""
    bits = {"int2": 2, "int4": 12}.get(given["params"]["weight_dtype"], 25)
    given = recipe(target, source_transforms=[given], verify={"min_sqnr_db": bits})
    lowered = lower("builders:dictionary", given)
    method = read_pte(lowered.file).methods[0]
    assert f"quantized_decomposed::{operator}" in method.operators
    assert "aten::embedding.out" not in method.operators
    sizes = [constant.extent.size for constant in read_pte(lowered.file).constants]
    assert 256 * 64 * size in sizes
    assert max(sizes) == 256 * 64 * size
