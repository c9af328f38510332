"""Torch 2.13 scans the whole operator registry for each decomposition; with this patch once, until it changes.

`_collect_all_valid_cia_ops` (torch/_export/utils.py) collects the operators with a CompositeImplicitAutograd kernel
that can be kept. It looks at every overload of every namespace, and asks C++ for all registrations once for each
namespace. `to_edge` calls it more than a hundred times. Delete once torch caches what it found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._export import utils
from torch._ops import OperatorBase

_COMPOSITE = "CompositeImplicitAutograd"


@contextmanager
def one_registry_scan() -> Iterator[None]:
    """Scans again only if operators were registered since, in C++ or by `py_impl`. Nothing outlasts the context."""
    scan, materialize, register = (
        utils._collect_all_valid_cia_ops,  # noqa: SLF001 - see the module's docstring
        utils._materialize_cpp_cia_ops,  # noqa: SLF001 - as above
        OperatorBase.py_impl,
    )
    registered_in_python = 0
    found: tuple[Any, set[OperatorBase]] | None = None

    def py_impl(operator: OperatorBase, key: Any) -> Any:
        nonlocal registered_in_python
        registered_in_python += 1
        return register(operator, key)

    def scan_once() -> set[OperatorBase]:
        nonlocal found
        registered = torch._C._dispatch_get_registrations_for_dispatch_key(_COMPOSITE)  # noqa: SLF001 - as torch does
        state = registered_in_python, tuple(registered), tuple(torch.ops._dir)  # noqa: SLF001 - as torch does
        if found is None or found[0] != state:
            materialize()
            utils._materialize_cpp_cia_ops = _nothing  # noqa: SLF001 - not again for each namespace
            try:
                operators = scan()
            finally:
                utils._materialize_cpp_cia_ops = materialize  # noqa: SLF001 - as above
            # The scan itself creates namespaces.
            found = (registered_in_python, tuple(registered), tuple(torch.ops._dir)), operators  # noqa: SLF001 - as above
        return set(found[1])

    users = [module for module in list(sys.modules.values()) if vars(module).get(scan.__name__) is scan]
    for module in users:
        setattr(module, scan.__name__, scan_once)
    OperatorBase.py_impl = py_impl
    try:
        yield
    finally:
        OperatorBase.py_impl = register
        for module in users:
            setattr(module, scan.__name__, scan)


def _nothing() -> None: ...
