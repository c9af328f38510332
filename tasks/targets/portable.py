"""Targets without a delegate: ExecuTorch's portable kernels, and kernels for some processors.

A target can run passes (`Target.edge_passes`), but Cortex-M and Cadence need more: their own operators registered
wherever a program is loaded, and for Cadence passes before the edge dialect. They are listed so that recipes that name
them get an explanation.
"""

from __future__ import annotations

from typing import ClassVar

from .base import Target


class Portable(Target):
    """Every operator runs on the portable kernels, which every runtime has. The fallback of fat files."""

    name: ClassVar[str] = "portable"
    delegates: ClassVar[bool] = False


class CortexM(Target):
    """Quantized inference by CMSIS-NN kernels on Arm's Cortex-M."""

    name: ClassVar[str] = "cortex_m"
    delegates: ClassVar[bool] = False
    quantized_only: ClassVar[bool] = True

    @classmethod
    def available(cls) -> str | None:
        return _reason("Cortex-M", "executorch.backends.cortex_m.passes.CortexMPassManager")


class Cadence(Target):
    """Inference by Cadence's kernels on Xtensa DSPs."""

    name: ClassVar[str] = "cadence"
    delegates: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        return _reason("Cadence's DSPs", "executorch.backends.cadence.aot.compiler")


def _reason(processor: str, upstream: str) -> str:
    return (
        f"ExecuTorch lowers for {processor} by graph passes that bring operators of their own, which pteforge does not "
        f"know; use {upstream} on a program of your own, or the target portable here"
    )
