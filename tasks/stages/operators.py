"""Operators by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload

from ...errors import TargetError


def find_operators(names: Sequence[str]) -> list[torch._ops.OpOverload]:
    """Resolves names such as ``aten.hardswish.default``; an overload left out means ``default``.

    Raises:
        TargetError: no such operator is registered.
    """
    return [_find_operator(name) for name in names]


def find_edge_operators(names: Sequence[str]) -> list[EdgeOpOverload]:
    """The same operators of the edge dialect; raises TargetError as `find_operators`."""
    found = []
    for operator in find_operators(names):
        namespace, name = operator.name().split("::")
        packet = getattr(getattr(exir_ops.edge, namespace), name.partition(".")[0])
        found.append(getattr(packet, operator._overloadname))  # noqa: SLF001 - torch has no public name for it
    return found


def _find_operator(name: str, where: str = "") -> torch._ops.OpOverload:
    namespace, _, rest = name.partition(".")
    operator, _, overload = rest.partition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default")
    except (AttributeError, RuntimeError):
        found = None
    if not isinstance(found, torch._ops.OpOverload):  # noqa: SLF001 - torch has no public name for it
        raise TargetError(
            f"unknown operator {name!r}{where}; write it as namespace.operator.overload, "
            "for example aten.hardswish.default"
        )
    return found


def check_operators(named: Iterable[tuple[str, str]]) -> None:
    """Raises TargetError for the first unknown operator, with the field that has it. Run before any stage starts."""
    for name, field in named:
        _find_operator(name, f" in {field}")
