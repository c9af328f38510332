"""OpenVINO: CPUs, GPUs and NPUs by Intel."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from .base import Target, TargetOptions
from .packages import missing_packages

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


class OpenVinoOptions(TargetOptions):
    """Options of the OpenVINO compiler.

    Attributes:
        device: what to compile for: ``CPU``, ``GPU`` or ``NPU``, with a number where there are several (``GPU.1``). The
            machine that lowers must have it.
    """

    device: Annotated[str, Field(pattern=r"^[A-Z]+(\.\d+)*$")] = "CPU"


@dataclass(frozen=True)
class OpenVino(Target):
    """Inference by OpenVINO; what it does not support runs by the portable kernels.

    The runtime in ExecuTorch's wheel has the backend where the `openvino` package is installed, so payloads for the CPU
    are verified. OpenVINO need not compile a model to equal bytes twice: once made, a payload is kept and used again.
    """

    options: OpenVinoOptions

    name: ClassVar[str] = "openvino"
    Options: ClassVar[type[TargetOptions]] = OpenVinoOptions
    backends: ClassVar[tuple[str, ...]] = ("OpenvinoBackend",)
    extra: ClassVar[str | None] = "openvino"
    distributions: ClassVar[tuple[str, ...]] = ("openvino",)
    reproducible: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        """Looks for the compiler, and for the quantizer, which ExecuTorch's part of the backend imports."""
        return missing_packages("openvino", "nncf", extra="openvino")

    def preserving(self) -> dict[str, Any]:
        """No option: the same operators stay whole for every device."""
        return {}

    def partitioners(self) -> Sequence[Partitioner]:
        """One OpenVINO partitioner."""
        # Without it, nncf and openvino report nothing about their use to Intel; they are made to work without.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: not to be imported
        from executorch.backends.openvino.partitioner import OpenvinoPartitioner  # noqa: PLC0415 - workers only
        from executorch.exir.backend.compile_spec_schema import CompileSpec  # noqa: PLC0415 - workers only

        return [OpenvinoPartitioner([CompileSpec("device", self.options.device.encode())])]
