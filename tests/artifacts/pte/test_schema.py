"""The numbers the reader knows are those of the installed ExecuTorch: a new schema fails here before it misleads."""

from __future__ import annotations

import inspect
import re
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path

import pytest
from pteforge.artifacts.pte import schema
from pteforge.artifacts.pte.dtypes import DTYPES

_ROOT = Path(next(iter(find_spec("executorch").submodule_search_locations)))
_KNOWN = [value for _, value in inspect.getmembers(schema, inspect.isclass) if value.__module__ == schema.__name__]


def _declarations() -> dict[str, dict[str, int]]:
    """Every table, union and enum of the schema files: upper-case names of slots or values to numbers."""
    folder = _ROOT / "exir" / "_serialize"
    text = "\n".join((folder / name).read_text() for name in ("scalar_type.fbs", "program.fbs"))
    text = re.sub(r"//.*", "", text)
    found: dict[str, dict[str, int]] = {}
    unions = set(re.findall(r"\bunion\s+(\w+)", text))
    for kind, name, body in re.findall(r"\b(table|union|enum)\s+(\w+)[^{]*\{([^}]*)\}", text):
        if kind == "table":
            found[name] = _slots(body, unions)
        elif kind == "union":
            members = [member.strip().upper() for member in body.split(",") if member.strip()]
            found[name] = {"NONE": 0} | {member: number for number, member in enumerate(members, 1)}
        else:
            found[name] = {key.upper(): int(number) for key, number in re.findall(r"(\w+)\s*=\s*(\d+)", body)}
    return found


def _slots(body: str, unions: set[str]) -> dict[str, int]:
    slots: dict[str, int] = {}
    for field, kind in re.findall(r"(\w+)\s*:\s*([\[\]\w]+)[^;]*;", body):
        if kind in unions:
            slots[f"{field}_TYPE".upper()] = len(slots)
        slots[field.upper()] = len(slots)
    return slots


@pytest.mark.parametrize("known", _KNOWN, ids=lambda known: known.__name__)
def test_slots_and_values_are_the_installed_ones(known: type[IntEnum]):
    """Each number that the reader uses has the same name and value in the schema file."""
    declared = _declarations()[known.__name__]
    assert {member.name: declared.get(member.name) for member in known} == {member.name: member for member in known}


@pytest.mark.parametrize(
    "name",
    ["KernelTypes", "InstructionArguments", "ScalarType", "TensorShapeDynamism", "DataLocation", "TensorDataLocation"],
)
def test_no_member_is_unknown(name: str):
    """Unions and enums are known completely, so that no real value is taken for damage."""
    assert {member.name: member.value for member in getattr(schema, name)} == _declarations()[name]


def test_fields_were_not_added():
    """A table that is read has as many slots as when the reader was written: look at what a new field means."""
    declared = _declarations()
    counts = {known.__name__: len(declared[known.__name__]) for known in _KNOWN}
    assert {
        name: counts[name] for name in ("Program", "ExecutionPlan", "Tensor", "ExtraTensorInfo", "BackendDelegate")
    } == {
        "Program": 8,
        "ExecutionPlan": 10,
        "Tensor": 10,
        "ExtraTensorInfo": 5,
        "BackendDelegate": 3,
    }
    assert {name: counts[name] for name in ("DataSegment", "SubsegmentOffsets", "NamedData", "Buffer")} == {
        "DataSegment": 2,
        "SubsegmentOffsets": 2,
        "NamedData": 2,
        "Buffer": 1,
    }


def test_identifier_is_the_installed_one():
    """Files carry the identifier that the schema declares."""
    text = (_ROOT / "exir" / "_serialize" / "program.fbs").read_text()
    assert re.search(r'file_identifier\s+"(\w+)"', text)[1].encode() == schema.IDENTIFIER


def test_dimension_limit_is_the_runtime_s():
    """The runtime refuses tensors of as many dimensions as the reader does."""
    header = _ROOT / "include" / "executorch" / "runtime" / "core" / "exec_aten" / "util" / "tensor_dimension_limit.h"
    assert int(re.search(r"kTensorDimensionLimit = (\d+)", header.read_text())[1]) == schema.MAX_DIMENSIONS


def test_dtypes_are_torch_s():
    """Every element type has torch's name, size and ExecuTorch's number; nothing is missing."""
    import torch
    from executorch.exir.tensor import scalar_type_table

    assert set(DTYPES) == set(schema.ScalarType)
    for dtype in DTYPES.values():
        torch_dtype = getattr(torch, dtype.name)
        assert (dtype.name, dtype.itemsize) == (str(torch_dtype).removeprefix("torch."), torch_dtype.itemsize)
    numbers = {number: str(torch_dtype).removeprefix("torch.") for torch_dtype, number in scalar_type_table.items()}
    common = numbers.keys() & set(map(int, DTYPES))
    assert len(common) > 12
    assert {number: numbers[number] for number in common} == {
        number: DTYPES[schema.ScalarType(number)].name for number in common
    }
