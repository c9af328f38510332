"""The Python API: one model, lowered in the calling process, for scripts and notebooks."""

from ..runtime.quiet import quiet

with quiet():
    from . import export, result  # noqa: F401 - torchao and others talk while they are imported
