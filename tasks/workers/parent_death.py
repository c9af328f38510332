"""Ties the life of a process to the one that made it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def parent_death_signal() -> Callable[[int], None]:
    """Gives a function that sets which signal this process gets when its parent ends, 0 for none.

    Two steps, because a freshly forked process should do as little as possible: the library is looked up here.
    "Parent" is the *thread* that forked (see prctl(2)), so it has to be one that lives long enough. Does nothing where
    there is no prctl; processes then end by the end of their socket only.
    """
    if sys.platform != "linux":
        return lambda _signum: None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

    def set_signal(signum: int) -> None:
        if prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")

    return set_signal


def die_with_parent(set_signal: Callable[[int], None], parent: int) -> None:
    """This process is killed as soon as its parent, process `parent`, ends; it exits at once if that has happened."""
    set_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
