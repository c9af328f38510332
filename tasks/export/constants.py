"""Constant methods: their values as ExecuTorch emits them, and the check that a file returns them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from executorch.exir.tensor import layout_enum, scalar_type_enum
from executorch.runtime import Runtime
from torch.utils import _pytree as pytree

from ...errors import SourceError, VerificationFailed

_INT64 = range(-(2**63), 2**63)


def emitted_constants(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Constants as ExecuTorch emits them (exir/emit/_emitter.py, `_emit_prim_getters`).

    Args:
        constants: name to value: int, float, bool, str, torch.dtype, torch.layout, tensor, or a tree of these.

    Raises:
        SourceError: something else is there, or an integer of more than 64 bits.
    """
    return {
        name: pytree.tree_map(lambda leaf, name=name: _emitted(name, leaf), tree) for name, tree in constants.items()
    }


def _emitted(name: str, leaf: Any) -> Any:
    match leaf:
        case bool() | float() | str():
            return leaf
        case int() if leaf in _INT64:
            return leaf
        case torch.dtype():
            return int(scalar_type_enum(leaf))
        case torch.layout():
            return int(layout_enum(leaf))
        case torch.Tensor() if leaf.layout is torch.strided:
            return leaf.detach()
    raise SourceError(
        f"constant method {name!r} has a {type(leaf).__name__} ({leaf!r:.40}); a file can hold integers of 64 bits, "
        "floats, booleans, text, dtypes and dense tensors, and lists, tuples and dicts of them"
    )


def check_constants(path: Path, constants: Mapping[str, Any]) -> None:
    """Checks that a `.pte` file, plain or fat, returns its constants, as `emitted_constants` returns them.

    Raises VerificationFailed if a constant method is missing, or returns something else.
    """
    if not constants:
        return
    program = Runtime.get().load_program(path)
    for name, tree in constants.items():
        try:
            returned = program.load_method(name).execute([])
        except (KeyError, RuntimeError) as error:
            raise VerificationFailed(f"the runtime cannot run the constant method {name!r}: {error}") from error
        wanted = pytree.tree_leaves(tree)
        if len(returned) != len(wanted) or not all(map(_equal, returned, wanted)):
            raise VerificationFailed(f"the constant method {name!r} returns {returned!r}, which should be {wanted!r}")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        return bool(same and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(other):
        return math.isnan(one)
    return type(one) is type(other) and bool(one == other)
