"""Arm's Cortex-M microcontrollers, by ExecuTorch's operators for CMSIS-NN."""

from __future__ import annotations

from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from ...errors import TargetError
from .base import Target, TargetOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

Isa = Literal["scalar", "dsp", "mve"]

_ISAS: dict[str, tuple[Isa, ...]] = {
    **dict.fromkeys(("m0", "m0plus", "m3", "m23"), ("scalar",)),
    **dict.fromkeys(("m4", "m7", "m33", "m35p"), ("scalar", "dsp")),
    **dict.fromkeys(("m55", "m85"), ("scalar", "dsp", "mve")),
}
"""The instructions that CMSIS-NN can use on each processor, as `CortexMTargetConfig` of executorch 1.5.1 has them."""


class CortexMOptions(TargetOptions):
    """Options of the target.

    Attributes:
        cpu: the processor.
        isa: the instructions that CMSIS-NN is built for: plain ones, those of the DSP extension, or Helium (MVE). They
            decide the size of scratch buffers. None: the most that processors of this kind have.
    """

    cpu: Literal["m0", "m0plus", "m3", "m4", "m7", "m23", "m33", "m35p", "m55", "m85"] = "m55"
    isa: Isa | None = None

    @model_validator(mode="after")
    def _can_run(self) -> Self:
        known = _ISAS[self.cpu]
        if self.isa and self.isa not in known:
            raise ValueError(f"a Cortex-{self.cpu.upper()} has no {self.isa!r}; it has {' and '.join(known)}")
        return self


class CortexMQuantizerOptions(TargetOptions):
    """It has none: int8, convolutions with a scale for each output channel."""


class CortexM(Target):
    """Quantized inference on a microcontroller; what CMSIS-NN lacks, and all in floating point, runs on other kernels.

    Programs take inputs in any memory format: they have permutations where channels have to be last.
    """

    options: CortexMOptions

    name: ClassVar[str] = "cortex_m"
    Options: ClassVar[type[TargetOptions]] = CortexMOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = CortexMQuantizerOptions
    extra: ClassVar[str | None] = "cortex-m"
    operators: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType(
        {"cortex_m": ("pteforge.tasks.upstream.cortex_m",)}
    )
    quantized_only: ClassVar[bool] = True
    keeps_dialect: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        installed = version("executorch")
        if installed.startswith("1.4."):
            return f"ExecuTorch {installed} has no passes for it that arrange memory formats; it needs 1.5 or later"
        return None

    @classmethod
    def quantizer(cls, options: Any) -> Quantizer:  # noqa: ARG003 - the base's
        from ..upstream.cortex_m import make_quantizer

        return make_quantizer()

    def decomposition_options(self) -> dict[str, Any]:
        return {}

    def partitioners(self) -> Sequence[Partitioner]:
        from ..upstream.cortex_m import kept_whole

        return [kept_whole()]

    def pass_options(self) -> dict[str, Any]:
        return self.options.model_dump(mode="json")

    def before_edge(self, program: ExportedProgram) -> ExportedProgram:
        """Raises TargetError for values of other dtypes than its kernels have."""
        from torch import bfloat16, float16

        for node in program.graph.nodes:
            if (dtype := getattr(node.meta.get("val"), "dtype", None)) in (float16, bfloat16):
                raise TargetError(
                    f"the model computes in {str(dtype).removeprefix('torch.')}, and Cortex-M has kernels for float32 "
                    "and int8 only: call `.float()` on the module and on its example inputs"
                )
        return program

    def after_edge(self, program: ExportedProgram) -> ExportedProgram:
        from ..upstream.cortex_m import for_cmsis_nn

        return for_cmsis_nn(program, self.options.cpu, self.options.isa)

    def refuses(self, program: ExportedProgram) -> str | None:
        """A program that is not quantized would run on kernels for floating point, without a word."""
        if any(getattr(node.target, "namespace", "") in self.operators for node in program.graph.nodes):
            return None
        return "nothing in it is quantized; write `quantize: {quantizer: cortex_m}` in the recipe, or use cortex-m55"
