"""OpenVINO: CPUs, GPUs and NPUs by Intel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ..upstream.imports import disable_openvino_telemetry
from .base import Target, TargetOptions, missing_packages

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer


class OpenVinoOptions(TargetOptions):
    """Options of the OpenVINO compiler.

    Attributes:
        device: the processor to compile for: ``CPU``, ``GPU`` or ``NPU``, with a number if there are several
            (``GPU.1``). The machine that lowers must have it.
    """

    device: Annotated[str, Field(pattern=r"^[A-Z]+(\.\d+)*$")] = "CPU"


class OpenVinoQuantizerOptions(TargetOptions):
    """Options of OpenVINO's quantizer.

    Attributes:
        mode: ``int8_sym`` and ``int8_mixed`` are for convolutional networks, with symmetric activations or not;
            ``int8_transformer`` leaves the sensitive parts of transformers as they are. Those that begin with
            ``int8wo`` and ``int4wo`` quantize only weights, without calibration.
        group_size: number of weights of an output channel that share a scale, in the modes for int4. None: 128.
        all_layers: int4 also for embeddings and the last layer, which are int8 otherwise.
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


class OpenVino(Target):
    """Inference by OpenVINO; unsupported operators run on the portable kernels.

    The runtime in ExecuTorch's wheel has the backend where the `openvino` package is installed, so payloads for the CPU
    are verified. OpenVINO may compile a model to other bytes each time: the store keeps a payload and uses it again.
    """

    options: OpenVinoOptions

    name: ClassVar[str] = "openvino"
    Options: ClassVar[type[TargetOptions]] = OpenVinoOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = OpenVinoQuantizerOptions
    folds_weights: ClassVar[bool] = False  # its compiler does not accept integer weights, and quantizes them itself
    backends: ClassVar[tuple[str, ...]] = ("OpenvinoBackend",)
    extra: ClassVar[str | None] = "openvino"
    distributions: ClassVar[tuple[str, ...]] = ("openvino", "nncf")
    reproducible: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        return missing_packages("openvino", "nncf", extra="openvino")

    def decomposition_options(self) -> dict[str, Any]:
        """None of the options: the same operators stay whole for every device."""
        return {}

    @classmethod
    def quantizer(cls, options: Any) -> Quantizer:
        disable_openvino_telemetry()
        from executorch.backends.openvino.quantizer import OpenVINOQuantizer, QuantizationMode

        mode = QuantizationMode(options.mode)
        if not options.mode.startswith("int4"):
            return OpenVINOQuantizer(mode=mode)
        return OpenVINOQuantizer(mode=mode, group_size=options.group_size, all_layers=options.all_layers)

    def partitioners(self) -> Sequence[Partitioner]:
        disable_openvino_telemetry()
        from executorch.backends.openvino.partitioner import OpenvinoPartitioner
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        return [OpenvinoPartitioner([CompileSpec("device", self.options.device.encode())])]
