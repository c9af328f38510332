"""Keeping upstream's chatter off the terminal."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing of what libraries write to standard error, from Python or from C; ``--verbose`` lets it through.

    Importing torchao and loading the runtime write lines that have no meaning for the user.
    """
    if _log.isEnabledFor(logging.INFO):
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
