"""Portable: ExecuTorch's own operator library, nothing delegated. Runs on every ExecuTorch runtime."""

from __future__ import annotations

from typing import ClassVar

from .base import Target


class Portable(Target):
    """Every operator runs on the portable kernels. The fallback of fat files."""

    name: ClassVar[str] = "portable"
    delegates: ClassVar[bool] = False
