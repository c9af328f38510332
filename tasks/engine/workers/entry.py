"""The global state that stages start from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

_REMEMBERED_CALLS = 5000  # of two kilobytes each


@contextmanager
def fresh_state() -> Iterator[None]:
    """Sets global state that tracing and eager depend on as in a fresh process, and restores it at the end.

    That is: one thread (the order of sums depends on their number), gradients enabled, no inference mode, no autocast,
    float32 as default dtype. The random generators and the current folder are restored, too.
    """
    threads, dtype, seeded = torch.get_num_threads(), torch.get_default_dtype(), random.getstate()
    seeded_numpy = np.random.get_state()  # noqa: NPY002 - bodies seed the global generator, so it is the one to keep
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    try:
        with (
            chdir(Path.cwd()),
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(mode=False),
            torch.set_grad_enabled(True),
            torch.autocast("cpu", enabled=False),
        ):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        random.setstate(seeded)
        np.random.set_state(seeded_numpy)  # noqa: NPY002 - as above


def forget_old_calls() -> None:
    """Empties torch's cache of operators called on fake tensors, if it has grown large.

    It has an entry for each operator and shape, and no bound: a process that lowers many models would only grow.
    """
    if len(FakeTensorMode.cache) > _REMEMBERED_CALLS:
        FakeTensorMode.cache_clear()
