"""NPUs whose compilers come from their vendors and not from PyPI.

Where what they need is installed, they lower with the partitioner that ExecuTorch documents for them. pteforge's tests
cannot try that: they see to it that a recipe that names one of them is told what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .base import Target, TargetOptions

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


@dataclass(frozen=True)
class VendorTarget(Target):
    """A target that needs what pip cannot bring.

    Attributes:
        modules: top-level modules that the compiler consists of.
        get: where they come from.
        system: the only `sys.platform` that can lower, None for any.
        programs: commands that must be on the path.
    """

    modules: ClassVar[tuple[str, ...]] = ()
    get: ClassVar[str]
    system: ClassVar[str | None] = None
    programs: ClassVar[tuple[str, ...]] = ()
    reproducible: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        """Names everything that is missing, and where to get it."""
        missing = [f"the Python module {module}" for module in cls.modules if find_spec(module) is None]
        missing += [f"the program {program}" for program in cls.programs if which(program) is None]
        if cls.system and sys.platform != cls.system:
            missing.insert(0, _SYSTEMS[cls.system])
        return f"this machine lacks {' and '.join(missing)}; {cls.get}" if missing else None

    def preserving(self) -> dict[str, Any]:
        """All options, since what they decide is not ours to know."""
        return self.options.model_dump(mode="json")


_SYSTEMS = {"darwin": "macOS"}


@dataclass(frozen=True)
class Qnn(VendorTarget):
    """Qualcomm's Hexagon NPUs by AI Engine Direct."""

    name: ClassVar[str] = "qnn"
    backends: ClassVar[tuple[str, ...]] = ("QnnBackend",)

    @classmethod
    def available(cls) -> str | None:
        """Not: the SDK alone would not do."""
        return (
            "it needs Qualcomm's AI Engine Direct SDK (https://softwarecenter.qualcomm.com), and graph passes of its "
            "own around the partitioner, which pteforge does not run; use to_edge_transform_and_lower_to_qnn of "
            "executorch.backends.qualcomm.utils.utils"
        )


class NxpOptions(TargetOptions):
    """Options of the Neutron compiler.

    Attributes:
        platform: the system with the NPU, by the name that the SDK has for it.
        fetch_constants_to_sram: copy weights to fast memory while they are used.
    """

    platform: str = "imxrt700"
    fetch_constants_to_sram: bool = False


@dataclass(frozen=True)
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
        """One Neutron partitioner."""
        from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec  # noqa: PLC0415 - workers
        from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner  # noqa: PLC0415 - workers only
        from executorch.backends.nxp.nxp_backend import generate_neutron_compile_spec  # noqa: PLC0415 - workers only

        options = self.options
        specs = generate_neutron_compile_spec(options.platform, fetch_constants_to_sram=options.fetch_constants_to_sram)
        return [NeutronPartitioner(specs, NeutronTargetSpec(options.platform))]


class MediaTekOptions(TargetOptions):
    """Options of the NeuroPilot compiler.

    Attributes:
        platform: the system on chip: Dimensity 9300, 9400 or 9500.
    """

    platform: Literal["mt6989", "mt6991", "mt6993"] = "mt6989"


@dataclass(frozen=True)
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
        """One NeuroPilot partitioner."""
        from executorch.backends.mediatek.partitioner import NeuropilotPartitioner  # noqa: PLC0415 - workers only
        from executorch.exir.backend.compile_spec_schema import CompileSpec  # noqa: PLC0415 - workers only

        return [NeuropilotPartitioner([CompileSpec("platform-config", self.options.platform.encode())])]


class SamsungOptions(TargetOptions):
    """Options of the ENN compiler.

    Attributes:
        chipset: the Exynos.
    """

    chipset: Literal["E9955", "E9965"] = "E9955"


@dataclass(frozen=True)
class Samsung(VendorTarget):
    """NPUs of Samsung's Exynos by ENN."""

    options: SamsungOptions

    name: ClassVar[str] = "samsung"
    Options: ClassVar[type[TargetOptions]] = SamsungOptions
    backends: ClassVar[tuple[str, ...]] = ("EnnBackend",)

    @classmethod
    def available(cls) -> str | None:
        """Looks for the part of the backend that the wheel does not have."""
        wheel = find_spec("executorch")
        folders = (wheel and wheel.submodule_search_locations) or ()
        adaptors = [each for folder in folders for each in Path(folder).glob("backends/samsung/python/PyEnnWrapper*")]
        if adaptors:
            return None
        return (
            "it needs Samsung's Exynos AI LiteCore (https://soc-developer.semiconductor.samsung.com) and an ExecuTorch "
            "that was built with it from source: the wheel has no PyEnnWrapperAdaptor"
        )

    def partitioners(self) -> Sequence[Partitioner]:
        """One ENN partitioner."""
        from executorch.backends.samsung.partition.enn_partitioner import EnnPartitioner  # noqa: PLC0415 - workers
        from executorch.backends.samsung.serialization.compile_options import (  # noqa: PLC0415 - workers only
            gen_samsung_backend_compile_spec,
        )

        return [EnnPartitioner([gen_samsung_backend_compile_spec(self.options.chipset)])]
