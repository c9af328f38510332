"""Qualcomm's Hexagon NPUs, by AI Engine Direct (QNN)."""

from __future__ import annotations

import logging
import mmap
import os
import platform
import re
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...errors import TargetError
from .base import Target, TargetOptions, missing_packages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

Snapdragon8 = Literal["SM8350", "SM8450", "SM8475", "SM8550", "SM8650", "SM8750", "SM8845", "SM8850"]
Other = Literal["QCM6490", "QCS9100", "SA8255", "SA8295", "SA8797", "SAR2230P", "SC8380XP"]
Wearable = Literal["SSG2115P", "SSG2125P", "SW6100", "SXR1230P", "SXR2230P", "SXR2330P"]
Soc = Literal[Snapdragon8, Other, Wearable]

_log = logging.getLogger(__name__)

SDK_ROOT = "QNN_SDK_ROOT"  # environment variable: folder of an SDK to use instead of the package
_ADVICE = "use fixed sizes, quantize the model, or choose another system on chip"
_BUILD = re.compile(rb"v\d+\.\d+\.\d+\.\d{6,}")  # v2.37.0.250724175447


class QnnOptions(TargetOptions):
    """Options of the compiler.

    Attributes:
        soc: the system on chip, such as SM8650 for Snapdragon 8 Gen 3. QCM6490, SAR2230P, SSG2115P, SSG2125P, SW6100
            and SXR1230P take only what is quantized; others compute the rest in float16.
    """

    soc: Soc = "SM8650"


class QnnQuantizerOptions(TargetOptions):
    """Options of the quantizer.

    Attributes:
        quant: bits of activations and of weights.
        per_channel: weights of convolutions and linear layers have a scale for each output channel instead of one for
            all.
        soc: as the target's: an SDK checks whether it supports the operators.
    """

    quant: Literal["8a8w", "8a4w", "16a16w", "16a8w", "16a4w", "fp16a8w"] = "8a8w"
    per_channel: bool = True
    soc: Soc = "SM8650"


class Qnn(Target):
    """Inference on a Hexagon NPU, quantized or in float16; unsupported operators run on the portable kernels."""

    options: QnnOptions

    name: ClassVar[str] = "qnn"
    Options: ClassVar[type[TargetOptions]] = QnnOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = QnnQuantizerOptions
    backends: ClassVar[tuple[str, ...]] = ("QnnBackend",)
    extra: ClassVar[str | None] = "qnn"
    distributions: ClassVar[tuple[str, ...]] = ("onnxruntime-qnn",)
    reproducible: ClassVar[bool] = False  # files have a time in them
    keeps_dialect: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            return "ExecuTorch has its compiler for Linux on x86-64 only; lower for this target there"
        if (installed := version("executorch")).startswith("1.4."):
            return f"ExecuTorch {installed} downloads an SDK on import; it needs 1.5 or later"
        if root := os.environ.get(SDK_ROOT):
            library = _library(root)
            return None if library.is_file() else f"{library} does not exist; set {SDK_ROOT} to the folder of an SDK"
        if reason := missing_packages("onnxruntime_qnn", extra="qnn"):
            return (
                f"{reason}, or set {SDK_ROOT} to the folder of Qualcomm's AI Engine Direct SDK, 2.37 or later "
                "(https://softwarecenter.qualcomm.com)"
            )
        return None

    @classmethod
    def versions(cls) -> Mapping[str, str]:
        """The build of the SDK, where one is used."""
        root = os.environ.get(SDK_ROOT)
        return {"qnn-sdk": _build(_library(root))} if root else {}

    @classmethod
    def load_libraries(cls) -> bool:
        """Loads the compiler's libraries, which emulate the NPU."""
        if cls.available() is not None:
            return False
        cls.load_compiler()
        return True

    @classmethod
    def load_compiler(cls) -> None:
        """Loads the compiler's libraries, which also run files; raises TargetError if they cannot be loaded."""
        from ..upstream.qnn import load

        root, package = os.environ.get(SDK_ROOT), find_spec("onnxruntime_qnn")
        library = _library(root) if root else Path(str(package and package.origin)).with_name("libQnnHtp.so")
        try:
            load(library)
        except OSError as error:
            raise TargetError(f"Qualcomm's compiler cannot be loaded: {error}") from error

    @classmethod
    def quantizer(cls, options: Any) -> Quantizer:
        cls.load_compiler()
        from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
        from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset

        quantizer = QnnQuantizer(soc_model=QcomChipset[options.soc])
        quantizer.set_default_quant_config(
            QuantDtype[f"use_{options.quant}"],
            is_conv_per_channel=options.per_channel,
            is_linear_per_channel=options.per_channel,
        )
        return quantizer

    def decomposition_options(self) -> dict[str, Any]:
        return {}

    def pass_options(self) -> dict[str, Any]:
        return {}

    def before_edge(self, program: ExportedProgram) -> ExportedProgram:
        """Raises TargetError for bfloat16, which no NPU computes in."""
        from torch import bfloat16

        if any(getattr(node.meta.get("val"), "dtype", None) is bfloat16 for node in program.graph.nodes):
            raise TargetError(
                "the model computes in bfloat16, and Hexagon NPUs do not: call `.float()` on the module and "
                "on its example inputs"
            )
        from ..upstream.compat import get_qnn_pass_manager_cls

        prepared: ExportedProgram = get_qnn_pass_manager_cls()().transform_for_export_pipeline(program)
        return prepared

    def after_edge(self, program: ExportedProgram) -> ExportedProgram:
        """Folds quantization into attributes of nodes and arranges memory formats, as the partitioner expects."""
        from executorch.exir.pass_manager import ExportedProgramPassManager

        from ..upstream.compat import get_qnn_pass_manager_cls

        passes = get_qnn_pass_manager_cls()().get_to_edge_transform_passes(program)
        arranged: ExportedProgram = ExportedProgramPassManager(passes)(program).exported_program
        return arranged

    def partitioners(self) -> Sequence[Partitioner]:
        self.load_compiler()
        from executorch.backends.qualcomm.partition.qnn_partitioner import QnnPartitioner
        from executorch.backends.qualcomm.partition.utils import get_skip_decomp_table
        from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
        from executorch.backends.qualcomm.utils import utils
        from executorch.backends.qualcomm.utils.qnn_manager_lifecycle import QnnManagerContext
        from executorch.exir.backend.utils import WhyNoPartition

        soc, why = self.options.soc, WhyNoPartition(_log)
        whole = {str(operator) for operator in get_skip_decomp_table()}

        class ExplainingQnnPartitioner(QnnPartitioner):  # type: ignore[misc]  # executorch is untyped here
            """Says what the compiler does not take, and frees it at the end."""

            def partition(self, edge_program: ExportedProgram) -> Any:
                with QnnManagerContext({"": self.compiler_specs_snapshot}):
                    return super().partition(edge_program)

            def generate_partitions(self, edge_program: ExportedProgram) -> Any:
                partitions = super().generate_partitions(edge_program)
                taken = {node for partition in partitions for node in partition.nodes}
                for node in edge_program.graph.nodes:
                    name = getattr(node.target, "__name__", "")
                    if name not in self.op_support_checker.node_visitors or node in taken:
                        continue
                    reason = f"Qualcomm's compiler does not take it for {soc}, with these dtypes and sizes"
                    why(node, reason)
                    if name in whole:
                        raise TargetError(f"{name} stays whole, and {reason}: {_ADVICE}")
                return partitions

        # float16 for what is not quantized; it changes nothing else
        options = utils.generate_htp_compiler_spec(use_fp16=True)
        return [ExplainingQnnPartitioner(utils.generate_qnn_executorch_compiler_spec(QcomChipset[soc], options))]


def _library(root: str) -> Path:
    return Path(root) / "lib" / "x86_64-linux-clang" / "libQnnHtp.so"


def _build(library: Path) -> str:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if found := _BUILD.search(content):
            return found.group().decode()
    raise TargetError(f"{library} does not say which build it is; set {SDK_ROOT} to the folder of Qualcomm's SDK")
