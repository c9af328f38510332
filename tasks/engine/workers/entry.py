"""The global state that stages start from."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ...upstream.compat import FakeTensorMode

_REMEMBERED_CALLS = 5000  # of two kilobytes each


class _Switch(NamedTuple):
    """A part of a process's global state."""

    get: Callable[[], Any]
    set: Callable[[Any], object]
    fresh: Any = None  # its value in a fresh process; None for the caller's


def _handlers(logger: logging.Logger) -> _Switch:
    return _Switch(lambda: [*logger.handlers], partial(setattr, logger, "handlers"))


# Distributions check arguments by their values, which cannot be traced. Dynamo switches the default off for the rest of
# the process when it first compiles something (TorchPatcher in torch/_dynamo/eval_frame.py), but some are created with
# `validate_args=True`.
_NEVER = property(lambda _: False, lambda *_: None)
_DISTRIBUTION = torch.distributions.Distribution


_SWITCHES = (
    _Switch(torch.get_num_threads, torch.set_num_threads, 1),  # the order of sums depends on it
    _Switch(torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    _Switch(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0),
    _Switch(torch.is_warn_always_enabled, torch.set_warn_always, False),
    # torch.export switches these off while it traces. Two threads that do so leave them off, and sums change.
    _Switch(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, True),  # noqa: SLF001 - the public setter warns
    _Switch(torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled, True),  # noqa: SLF001 - as above
    _Switch(random.getstate, random.setstate),
    _Switch(np.random.get_state, np.random.set_state),
    _Switch(lambda: _DISTRIBUTION._validate_args, partial(setattr, _DISTRIBUTION, "_validate_args"), _NEVER),  # noqa: SLF001 - has a public setter only
    # ExecuTorch calls `logging.warning`, which adds a handler: the caller's `basicConfig` would do nothing afterwards.
    _handlers(logging.getLogger()),
    _handlers(logging.getLogger("torch.__trace")),  # draft_export removes torch's own
)


@contextmanager
def fresh_state() -> Iterator[None]:
    """Sets global state that tracing and eager depend on as in a fresh process, and restores it at the end.

    That is what `_SWITCHES` has, the mode of gradients and autocast, the default device, and the current folder.
    """
    before = [switch.get() for switch in _SWITCHES]
    try:
        for switch in _SWITCHES:
            if switch.fresh is not None:
                switch.set(switch.fresh)
        with (
            chdir(Path.cwd()),
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(mode=False),
            torch.set_grad_enabled(True),
            torch.autocast("cpu", enabled=False),
            nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"),
        ):
            yield
    finally:
        for switch, value in zip(_SWITCHES, before, strict=True):
            switch.set(value)


def forget_old_calls() -> None:
    """Empties torch's cache of operators called on fake tensors, which has no bound, if it has grown large."""
    if len(FakeTensorMode.cache) > _REMEMBERED_CALLS:
        FakeTensorMode.cache_clear()
