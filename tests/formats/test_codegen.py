"""The numbers the readers use are those of the installed ExecuTorch: a new schema fails here before it misleads."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from pteforge.formats.codegen import generate
from pteforge.formats.nfat import slots_generated
from pteforge.formats.nfat.contents import Source
from pteforge.formats.pte.contents import DTYPES
from pteforge.formats.pte.methods import MAX_DIMENSIONS
from pteforge.formats.pte.schema_generated import ScalarType

_EXECUTORCH = Path(next(iter(find_spec("executorch").submodule_search_locations)))
_GENERATED = generate()


@pytest.mark.parametrize("path", _GENERATED, ids=lambda path: path.stem)
def test_generated_code_is_current(path):
    """The checked-in code is what `python -m pteforge.formats.codegen` makes: any change of a schema shows up here."""
    assert path.read_text(encoding="utf-8") == _GENERATED[path]


def test_sources_and_dimensions():
    """Sources of NFAT extents have the schema's numbers; the runtime refuses tensors of as many dimensions."""
    assert Source.__members__ == slots_generated.Source.__members__
    header = _EXECUTORCH / "include/executorch/runtime/core/exec_aten/util/tensor_dimension_limit.h"
    assert int(re.search(r"kTensorDimensionLimit = (\d+)", header.read_text())[1]) == MAX_DIMENSIONS


def test_dtypes_are_torch_s():
    """Every element type has torch's name, size and ExecuTorch's number; nothing is missing."""
    import torch
    from executorch.exir.tensor import scalar_type_table

    assert set(DTYPES) == set(ScalarType)
    for dtype in DTYPES.values():
        torch_dtype = getattr(torch, dtype.name)
        assert (dtype.name, dtype.itemsize) == (str(torch_dtype).removeprefix("torch."), torch_dtype.itemsize)
    numbers = {number: str(torch_dtype).removeprefix("torch.") for torch_dtype, number in scalar_type_table.items()}
    common = numbers.keys() & set(map(int, DTYPES))
    assert len(common) > 12
    assert {number: numbers[number] for number in common} == {
        number: DTYPES[ScalarType(number)].name for number in common
    }
