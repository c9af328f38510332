"""Where pteforge keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$PTEFORGE_CACHE``, ``$XDG_CACHE_HOME/pteforge`` or ``~/.cache/pteforge``; it need not be there."""
    if own := os.environ.get("PTEFORGE_CACHE"):
        return Path(own).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).absolute() / "pteforge"
    return Path.home() / ".cache" / "pteforge"
