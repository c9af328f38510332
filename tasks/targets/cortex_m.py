"""Arm's Cortex-M microcontrollers, by ExecuTorch's operators for CMSIS-NN."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from ...errors import TargetError
from .base import Target, TargetOptions, missing_packages

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    distributions: ClassVar[tuple[str, ...]] = ("tosa-tools",)
    operators: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType(
        {"cortex_m": ("executorch.backends.cortex_m.passes",)}  # imports `ops.operators`, which cannot be the first
    )
    quantized_only: ClassVar[bool] = True
    preserved_operators: ClassVar[tuple[str, ...]] = (
        *("aten.linear.default", "aten.silu.default", "aten.hardsigmoid.default", "aten.hardsigmoid_.default"),
        *("aten.hardswish.default", "aten.hardswish_.default"),
    )
    keeps_dialect: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        return missing_packages("ml_dtypes", "tosa_serializer", extra="cortex-m")  # its passes import Arm's others

    @classmethod
    def quantizer(cls, options: Any) -> Quantizer:  # noqa: ARG003 - the base's
        from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer

        return CortexMQuantizer(use_explicit_layout=True)

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
        from executorch.backends.cortex_m.library import cmsis_nn
        from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
        from executorch.backends.cortex_m.passes.explicit_layout_pass import ValidateCortexMExplicitLayoutPass
        from executorch.backends.cortex_m.target_config import CortexM as Cpu
        from executorch.backends.cortex_m.target_config import CortexMTargetConfig

        isa = getattr(cmsis_nn.Backend, self.options.isa.upper()) if self.options.isa else None
        config = CortexMTargetConfig(Cpu[self.options.cpu.upper()], isa)
        # fails for each convolution that is left in floating point, which the portable kernels compute
        needless = ValidateCortexMExplicitLayoutPass
        passes = [each for each in CortexMPassManager.explicit_layout_pass_list if each is not needless]
        rewritten: ExportedProgram = CortexMPassManager(program, passes, config).transform()
        return rewritten

    def refuses(self, program: ExportedProgram) -> str | None:
        """A program that is not quantized would run on kernels for floating point, without a word."""
        if any(getattr(node.target, "namespace", "") in self.operators for node in program.graph.nodes):
            return None
        return "nothing in it is quantized; write `quantize: {quantizer: cortex_m}` in the recipe, or use cortex-m55"
