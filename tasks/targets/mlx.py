"""MLX: the GPUs of Apple silicon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..upstream.mlx import missing, mlx_partitioner
from .base import Target

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


class Mlx(Target):
    """Inference by MLX on Macs with Apple silicon; unsupported operators run on the portable kernels.

    Any machine can compile payloads. The runtime in ExecuTorch's wheel has MLX on Apple silicon only.
    """

    name: ClassVar[str] = "mlx"
    backends: ClassVar[tuple[str, ...]] = ("MLXBackend",)

    @classmethod
    def available(cls) -> str | None:
        return missing()

    def decomposition_options(self) -> dict[str, Any]:
        """No options, but it keeps operators whole that others decompose."""
        return {}

    def partitioners(self) -> Sequence[Partitioner]:
        return [mlx_partitioner()]
