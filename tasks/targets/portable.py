"""ExecuTorch's portable kernels."""

from __future__ import annotations

from typing import ClassVar

from .base import Target


class Portable(Target):
    """Every operator runs on the portable kernels, which every runtime has. The fallback of fat files."""

    name: ClassVar[str] = "portable"
    delegates: ClassVar[bool] = False
