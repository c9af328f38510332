"""Global state as a worker process has it, for as long as a stage runs in somebody else's process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import numpy as np
import torch


@contextmanager
def fresh_state() -> Iterator[None]:
    """Sets what tracing and eager's figures depend on to what it is in a fresh process, and puts it back at the end.

    These are: one thread (the order of sums depends on their number), gradients on, no inference mode, no autocast,
    float32 as default dtype. The random generators and the current folder are as before, too, at the end.
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
