"""NPUs and GPUs whose compilers come from their vendors and not from PyPI.

Where these are installed, the targets lower with the partitioner that ExecuTorch documents. pteforge's tests cannot try
that: they check that a recipe that names one of them reports what to install. For GPUs, AOTInductor compiles kernels,
on a machine with that GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .base import Target, TargetOptions

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


class VendorTarget(Target):
    """A target with requirements that PyPI does not have."""

    modules: ClassVar[tuple[str, ...]] = ()  # top-level modules of the compiler
    get: ClassVar[str]  # how to get them
    needs_mac: ClassVar[bool] = False  # whether only a Mac can lower
    programs: ClassVar[tuple[str, ...]] = ()  # commands that must be on the path
    reproducible: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        missing = [f"the Python module {module}" for module in cls.modules if find_spec(module) is None]
        missing += [f"the program {program}" for program in cls.programs if which(program) is None]
        if cls.needs_mac and sys.platform != "darwin":
            missing.insert(0, "macOS")
        return f"this machine lacks {' and '.join(missing)}; {cls.get}" if missing else None

    def decomposition_options(self) -> dict[str, Any]:
        """All options, since we do not know what they decide."""
        return self.options.model_dump(mode="json")


class NxpOptions(TargetOptions):
    """Options of the Neutron compiler.

    Attributes:
        platform: the SDK's name of the system with the NPU.
        fetch_constants_to_sram: copy weights to fast memory for use.
    """

    platform: str = "imxrt700"
    fetch_constants_to_sram: bool = False


class Nxp(VendorTarget):
    """NXP's eIQ Neutron NPUs. Claims quantized operators only."""

    options: NxpOptions

    name: ClassVar[str] = "nxp"
    Options: ClassVar[type[TargetOptions]] = NxpOptions
    backends: ClassVar[tuple[str, ...]] = ("NeutronBackend",)
    distributions: ClassVar[tuple[str, ...]] = ("eiq-neutron-sdk",)
    quantized_only: ClassVar[bool] = True
    modules: ClassVar[tuple[str, ...]] = ("eiq_neutron_sdk",)
    get: ClassVar[str] = "pip install --index-url https://eiq.nxp.com/repository eiq-neutron-sdk==3.2.3"

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
        from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner
        from executorch.backends.nxp.nxp_backend import generate_neutron_compile_spec

        options = self.options
        specs = generate_neutron_compile_spec(options.platform, fetch_constants_to_sram=options.fetch_constants_to_sram)
        return [NeutronPartitioner(specs, NeutronTargetSpec(options.platform))]


class MediaTekOptions(TargetOptions):
    """Options of the NeuroPilot compiler.

    Attributes:
        platform: the system on chip: Dimensity 9300, 9400 or 9500.
    """

    platform: Literal["mt6989", "mt6991", "mt6993"] = "mt6989"


class MediaTek(VendorTarget):
    """MediaTek's NPUs by NeuroPilot."""

    options: MediaTekOptions

    name: ClassVar[str] = "mediatek"
    Options: ClassVar[type[TargetOptions]] = MediaTekOptions
    backends: ClassVar[tuple[str, ...]] = ("NeuropilotBackend",)
    distributions: ClassVar[tuple[str, ...]] = ("mtk-converter", "mtk-neuron")
    modules: ClassVar[tuple[str, ...]] = ("mtk_converter", "mtk_neuron")
    get: ClassVar[str] = "install the two wheels of MediaTek's NeuroPilot Express SDK (https://neuropilot.mediatek.com)"

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.mediatek.partitioner import NeuropilotPartitioner
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        return [NeuropilotPartitioner([CompileSpec("platform-config", self.options.platform.encode())])]


class SamsungOptions(TargetOptions):
    """Options of the ENN compiler.

    Attributes:
        chipset: the Exynos.
    """

    chipset: Literal["E9955", "E9965"] = "E9955"


class Samsung(VendorTarget):
    """NPUs of Samsung's Exynos by ENN."""

    options: SamsungOptions

    name: ClassVar[str] = "samsung"
    Options: ClassVar[type[TargetOptions]] = SamsungOptions
    backends: ClassVar[tuple[str, ...]] = ("EnnBackend",)

    @classmethod
    def available(cls) -> str | None:
        wheel = find_spec("executorch")
        folders = (wheel and wheel.submodule_search_locations) or ()
        if any(list(Path(folder).glob("backends/samsung/python/PyEnnWrapper*")) for folder in folders):
            return None
        return (
            "it needs Samsung's Exynos AI LiteCore (https://soc-developer.semiconductor.samsung.com) and an ExecuTorch "
            "that was built with it from source: the wheel has no PyEnnWrapperAdaptor"
        )

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.samsung.partition.enn_partitioner import EnnPartitioner
        from executorch.backends.samsung.serialization.compile_options import gen_samsung_backend_compile_spec

        return [EnnPartitioner([gen_samsung_backend_compile_spec(self.options.chipset)])]


class Cuda(VendorTarget):
    """Nvidia's GPUs. For models with one method."""

    name: ClassVar[str] = "cuda"
    backends: ClassVar[tuple[str, ...]] = ("CudaBackend",)
    distributions: ClassVar[tuple[str, ...]] = ("triton",)
    modules: ClassVar[tuple[str, ...]] = ("triton",)
    programs: ClassVar[tuple[str, ...]] = ("nvcc", "nvidia-smi")
    get: ClassVar[str] = (
        "use a machine with an Nvidia GPU and the CUDA toolkit, and a CUDA build of PyTorch, which brings triton"
    )

    @classmethod
    def available(cls) -> str | None:
        if reason := super().available():
            return reason
        if "+cpu" in version("torch"):
            return f"PyTorch {version('torch')} has no CUDA; {cls.get}"
        return None

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.cuda.cuda_backend import CudaBackend
        from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

        return [CudaPartitioner([CudaBackend.generate_method_name_compile_spec("forward")])]


class Metal(VendorTarget):
    """Apple's GPUs. For models with one method."""

    name: ClassVar[str] = "metal"
    backends: ClassVar[tuple[str, ...]] = ("MetalBackend",)
    needs_mac: ClassVar[bool] = True
    programs: ClassVar[tuple[str, ...]] = ("xcrun",)
    get: ClassVar[str] = "lower on a Mac with Apple silicon and Xcode; the targets mlx and coreml lower here"

    def partitioners(self) -> Sequence[Partitioner]:
        from executorch.backends.apple.metal.metal_backend import MetalBackend
        from executorch.backends.apple.metal.metal_partitioner import MetalPartitioner

        return [MetalPartitioner([MetalBackend.generate_method_name_compile_spec("forward")])]
