"""What lowering repeats in torch and exir, left out: all patches that save time and change no byte of a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH = "PTEFORGE_UPSTREAM"
"""Environment variable; ``plain`` turns the patches off."""


@contextmanager
def lean_lowering() -> Iterator[None]:
    """Applies the patches while the context is open, or while the decorated function runs."""
    if os.environ.get(SWITCH) == "plain":
        yield
        return
    # Stages are looked up in processes that do without torch.
    from .generated_code import code_on_demand  # noqa: PLC0415
    from .graph_sorting import sorting_in_place  # noqa: PLC0415
    from .idle_retraces import no_idle_retraces  # noqa: PLC0415
    from .node_ancestry import shared_ancestors  # noqa: PLC0415
    from .partition_merging import merging_by_sets  # noqa: PLC0415
    from .registry_scans import one_registry_scan  # noqa: PLC0415

    with (
        code_on_demand(),
        no_idle_retraces(),
        shared_ancestors(),
        one_registry_scan(),
        sorting_in_place(),
        merging_by_sets(),
    ):
        yield
