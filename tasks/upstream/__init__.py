"""Patches of what lowering uses, for torch 2.13 and ExecuTorch 1.4.1 and 1.5.1, by the project that is patched.

A patch is applied by one function, whose docstring gives the reason, why it is sound, and when to delete it;
docs/internals/upstream.md lists all of them. Each file says first of which stages' keys it is a part.

Patches that save time and change no byte of a file are applied together by `lean_lowering`, which is here because
stages import it, without torch. It and what it applies are in keys of `edge`, `partition`, `preprocess`, `compile`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

TESTED = ("1.4.1", "1.5.1")  # releases of ExecuTorch
SWITCH = "PTEFORGE_UPSTREAM"  # environment variable; ``plain`` turns the patches off that only save time


def saves_time() -> bool:
    """Whether the patches that only save time are to be applied."""
    return os.environ.get(SWITCH) != "plain"


@contextmanager
def lean_lowering() -> Iterator[None]:
    """Leaves out what torch and exir repeat, while the context is open or the decorated function runs."""
    if not saves_time():
        yield
        return
    # Stages are looked up in processes that do without torch.
    from .exir import merging_by_sets, no_idle_retraces, sorting_in_place  # noqa: PLC0415
    from .torch_lowering import code_on_demand, one_registry_scan, shared_ancestors  # noqa: PLC0415

    with (
        code_on_demand(),
        no_idle_retraces(),
        shared_ancestors(),
        one_registry_scan(),
        sorting_in_place(),
        merging_by_sets(),
    ):
        yield
