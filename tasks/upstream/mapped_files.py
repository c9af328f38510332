"""Files that torch 2.13.0 maps by itself, of which Python's audit hooks do not hear: with this patch others do.

safetensors 0.8.0 maps files with ``torch.UntypedStorage.from_file``, too. Delete once that raises an audit event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch


@contextmanager
def mapping_heard(hear: Callable[[Any], None]) -> Iterator[None]:
    """Calls `hear` with each path that a storage is mapped from while the context lasts."""
    from_file = torch.UntypedStorage.from_file

    @wraps(from_file)
    def call(filename: Any, *args: Any, **options: Any) -> Any:
        hear(filename)
        return from_file(filename, *args, **options)

    torch.UntypedStorage.from_file = staticmethod(call)
    try:
        yield
    finally:
        torch.UntypedStorage.from_file = from_file
