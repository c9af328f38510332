"""OpenVINO: CPUs, GPUs and NPUs by Intel."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from .base import Target, TargetOptions
from .packages import missing_packages

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer


class OpenVinoOptions(TargetOptions):
    """Options of the OpenVINO compiler.

    Attributes:
        device: what to compile for: ``CPU``, ``GPU`` or ``NPU``, with a number where there are several (``GPU.1``). The
            machine that lowers must have it.
    """

    device: Annotated[str, Field(pattern=r"^[A-Z]+(\.\d+)*$")] = "CPU"


class OpenVinoQuantizerOptions(TargetOptions):
    """Options of OpenVINO's quantizer.

    Attributes:
        mode: ``int8_sym`` and ``int8_mixed`` for convolutional networks, activations symmetric or not; with
            ``int8_transformer`` what transformers are sensitive in stays as it is. Those that begin with ``int8wo`` and
            ``int4wo`` are for weights only, and calibrate nothing.
        group_size: how many weights of an output channel have a scale of their own, in the modes for int4. None: 128.
        all_layers: int4 for embeddings and the last layer too, which are int8 otherwise.
    """

    mode: Literal[
        "int8_sym", "int8_mixed", "int8_transformer", "int8wo_sym", "int8wo_asym", "int4wo_sym", "int4wo_asym"
    ] = "int8_sym"
    group_size: Annotated[int, Field(ge=1)] | None = None
    all_layers: bool = False

    @model_validator(mode="after")
    def _only_for_int4(self) -> Self:
        if (self.group_size or self.all_layers) and not self.mode.startswith("int4"):
            raise ValueError(
                f"group_size and all_layers are for int4wo_sym and int4wo_asym, and the mode is {self.mode}"
            )
        return self


@dataclass(frozen=True)
class OpenVino(Target):
    """Inference by OpenVINO; what it does not support runs by the portable kernels.

    The runtime in ExecuTorch's wheel has the backend where the `openvino` package is installed, so payloads for the CPU
    are verified. OpenVINO need not compile a model to equal bytes twice: once made, a payload is kept and used again.
    """

    options: OpenVinoOptions

    name: ClassVar[str] = "openvino"
    Options: ClassVar[type[TargetOptions]] = OpenVinoOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = OpenVinoQuantizerOptions
    folds_weights: ClassVar[bool] = False  # its compiler takes no integers as weights, and quantizes them itself
    backends: ClassVar[tuple[str, ...]] = ("OpenvinoBackend",)
    extra: ClassVar[str | None] = "openvino"
    distributions: ClassVar[tuple[str, ...]] = ("openvino", "nncf")
    reproducible: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        """Looks for the compiler, and for the quantizer, which ExecuTorch's part of the backend imports."""
        return missing_packages("openvino", "nncf", extra="openvino")

    def preserving(self) -> dict[str, Any]:
        """No option: the same operators stay whole for every device."""
        return {}

    @classmethod
    def quantizer(cls, options: TargetOptions) -> Quantizer:
        """OpenVINO's own, which chooses operators and schemes by nncf."""
        _report_nothing()
        from executorch.backends.openvino.quantizer import (  # noqa: PLC0415 - workers only
            OpenVINOQuantizer,
            QuantizationMode,
        )

        given = OpenVinoQuantizerOptions.model_validate(options.model_dump())
        mode = QuantizationMode(given.mode)
        if not given.mode.startswith("int4"):
            return OpenVINOQuantizer(mode=mode)
        return OpenVINOQuantizer(mode=mode, group_size=given.group_size, all_layers=given.all_layers)

    def partitioners(self) -> Sequence[Partitioner]:
        """One OpenVINO partitioner."""
        _report_nothing()
        from executorch.backends.openvino.partitioner import OpenvinoPartitioner  # noqa: PLC0415 - workers only
        from executorch.exir.backend.compile_spec_schema import CompileSpec  # noqa: PLC0415 - workers only

        return [OpenvinoPartitioner([CompileSpec("device", self.options.device.encode())])]


def _report_nothing() -> None:
    """Hides the package with which nncf and openvino report their use to Intel; they are made to work without."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: not to be imported
