"""Torch 2.13 scans the whole operator registry for each decomposition; with this patch once, until it changes.

`_collect_all_valid_cia_ops` (torch/_export/utils.py) collects the operators with a CompositeImplicitAutograd kernel
that can be kept. It looks at every overload of every namespace, and asks C++ for all registrations once for each
namespace. `to_edge` calls it more than a hundred times. Delete once torch caches what it found.

`run_decompositions` then registers some ten thousand kernels in Python for its own time, with `OperatorBase.py_impl`
(torch/_ops.py), which builds the types of its annotations at each call. Those of `typing` are cached, those of
`collections.abc` are not. Delete once torch's annotations are not evaluated.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import _ops
from torch._export import utils

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 - as torch does


@contextmanager
def one_registry_scan() -> Iterator[None]:
    """Scans again only if operators were registered since, in C++ or by `py_impl`. Nothing outlasts the context."""
    scan, register, callable_type = utils._collect_all_valid_cia_ops, _ops.OperatorBase.py_impl, _ops.Callable  # noqa: SLF001
    found: tuple[Any, set[_ops.OperatorBase]] | None = None

    def py_impl(operator: _ops.OperatorBase, key: Any) -> Any:
        nonlocal found
        if found and key == _COMPOSITE and operator not in found[1]:
            found = None
        return register(operator, key)

    def scan_once() -> set[_ops.OperatorBase]:
        nonlocal found
        if found is None or found[0] != _registered():
            operators = _scan(scan)
            found = _registered(), operators  # asked again: the scan itself creates namespaces
        return set(found[1])

    users = [module for module in list(sys.modules.values()) if vars(module).get(scan.__name__) is scan]
    for module in users:
        setattr(module, scan.__name__, scan_once)
    _ops.OperatorBase.py_impl = py_impl
    _ops.Callable = typing.Callable
    try:
        yield
    finally:
        _ops.Callable = callable_type
        _ops.OperatorBase.py_impl = register
        for module in users:
            setattr(module, scan.__name__, scan)


def _registered() -> Any:
    """What C++ has registered, and the namespaces that Python knows."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(_COMPOSITE.name)  # noqa: SLF001 - as torch does
    return list(registered), list(torch.ops._dir)  # noqa: SLF001 - as torch does


def _scan(scan: Any) -> set[_ops.OperatorBase]:
    """A scan that asks C++ for its registrations once."""
    materialize = utils._materialize_cpp_cia_ops  # noqa: SLF001 - see the module's docstring
    materialize()
    utils._materialize_cpp_cia_ops = _nothing  # noqa: SLF001 - as above
    try:
        operators: set[_ops.OperatorBase] = scan()
        return operators
    finally:
        utils._materialize_cpp_cia_ops = materialize  # noqa: SLF001 - as above


def _nothing() -> None: ...
