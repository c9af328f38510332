"""Torch 2.13 copies all ancestors of a node each time that a graph is traced again; with this patch nodes share them.

`NodeSource.__init__` (torch/fx/traceback.py) deep-copies ``meta["from_node"]``, which grows by one with each trace, so
that the work is quadratic. Sound because nobody changes a `NodeSource` after it was made. Delete once torch shares
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx.traceback import NodeSource


@contextmanager
def shared_ancestors() -> Iterator[None]:
    """While the context is open, a deep copy of a `NodeSource` is the same one."""
    NodeSource.__deepcopy__ = _same
    try:
        yield
    finally:
        del NodeSource.__deepcopy__


def _same(source: NodeSource, memo: Any) -> NodeSource:
    del memo
    return source
