"""The target contract."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import requires
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.pass_base import ExportedProgramPassBase
    from executorch.exir.pass_manager import PassType
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer


class TargetOptions(BaseModel):
    """Base of a target's options, which a recipe writes under ``options``. Frozen; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TargetParams(TargetOptions):
    """A target and its options, as stages have them."""

    name: str  # name of the target in the entry-point group ``pteforge.targets``
    options: dict[str, Any] = {}  # its options as JSON, defaults filled in


@dataclass(frozen=True)
class Target:
    """How to lower for one backend, with its options. Subclasses add no fields, so they are frozen dataclasses too.

    A target is data and a few pure functions of its options. It is found by name in the entry-point group
    ``pteforge.targets``, created in every process that uses it, and keeps no state. Its module must be importable
    without torch and ExecuTorch: import them inside `partitioners`, `quantizer` and `edge_passes`, which only run in
    worker processes.

    Attributes:
        QuantizerOptions: type of its quantizer's options; None without a quantizer.
        folds_weights: whether programs that its quantizer annotates hold their weights as integers, and not as floating
            point numbers that are quantized in the graph.
        knows_linear_only: whether its quantizer knows products with weights as linear layers only, so that others are
            written as such.
        backends: the runtime backends that its payload may need, by the ids that the device registers.
        extra: the pip extra of pteforge that installs its requirements; None if the base installation has them.
        distributions: packages besides torch and executorch whose versions its result depends on.
        reproducible: whether the same inputs result in the same bytes each time.
        operators: namespaces of the operators that it puts in place of ATen's, each with the modules that register
            them and what they compute in Python; empty for a target whose partitioners delegate.
        delegates: whether it has partitioners or operators; without, programs go from `edge` to `compile` as they are.
        quantized_only: whether it claims only quantized operators.
        leaves_affine: whether it may leave some of torchao's affine quantization, which is then decomposed.
        keeps_dialect: whether its programs obey the rules of the edge dialect, which are checked if they do.
        skips_dim_order: whether it wants memory formats as arguments of operators, not as dim-order operators.
    """

    options: TargetOptions

    name: ClassVar[str]
    Options: ClassVar[type[TargetOptions]] = TargetOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = None
    folds_weights: ClassVar[bool] = True
    knows_linear_only: ClassVar[bool] = False
    backends: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str | None] = None
    distributions: ClassVar[tuple[str, ...]] = ()
    reproducible: ClassVar[bool] = True
    operators: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    delegates: ClassVar[bool] = True
    quantized_only: ClassVar[bool] = False
    leaves_affine: ClassVar[bool] = False
    keeps_dialect: ClassVar[bool] = True
    skips_dim_order: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        """Why this target cannot lower on this machine and what to install; None if it can.

        Called before any work starts, in a process without torch: look for packages, do not import them.
        """
        return None

    @classmethod
    def versions(cls) -> Mapping[str, str]:
        """Versions of programs and libraries, besides `distributions`, that its result depends on, by name."""
        return {}

    @classmethod
    def load_libraries(cls) -> bool:
        """Loads what the runtime's backends open by name, to run files here; whether it is here. Most open nothing."""
        return True

    def decomposition_options(self) -> dict[str, Any] | None:
        """The options that decide which operators `edge` leaves whole, as JSON; None if it decomposes all.

        Specializations of one target with equal answers share their edge programs.
        """
        return None

    @classmethod
    def quantizer(cls, options: Any) -> Quantizer:
        """The PT2E quantizer, for a target that has `QuantizerOptions`; the options are of that class."""
        raise NotImplementedError(f"target {cls.name!r} has no quantizer: {options}")

    def pass_options(self) -> dict[str, Any] | None:
        """The options that decide how `edge` changes programs, as JSON; None if the target does not change them.

        Targets that do not can share their edge programs, see `decomposition_options`.
        """
        return None

    def before_edge(self, program: ExportedProgram) -> ExportedProgram:
        """A method's ATen program, as the target wants it before it is decomposed; see `pass_options`."""
        return program

    def edge_passes(self) -> Sequence[PassType | ExportedProgramPassBase]:
        """The passes to run over each method's edge program before the partitioners; see `pass_options`.

        A pass that copies the `meta` of the nodes that it replaces (as ExportPass does) keeps operators comparable with
        the model's own: `pteforge bisect` finds their origin by it.
        """
        return ()

    def after_edge(self, program: ExportedProgram) -> ExportedProgram:
        """A method's edge program after all passes, with `operators` of the target's own; see `pass_options`."""
        return program

    def refuses(self, program: ExportedProgram) -> str | None:  # noqa: ARG002 - for subclasses
        """What the partitioners would claim in an Edge program and the backend fail on, and what to do about it."""
        return None

    def partitioners(self) -> Sequence[Partitioner]:
        """The partitioners to run one after another on each method; empty if nothing is delegated.

        Those of a target with `operators` only say what is not decomposed, as an `upstream.exir.Keeping` does.
        Importing ExecuTorch's backends here registers them with it.
        """
        return ()


def this_system() -> str:
    """Python, system and processor, which decide what wheels there are."""
    return f"Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.system()} for {platform.machine()}"


def missing_packages(*modules: str, extra: str) -> str | None:
    """Which of the modules cannot be imported here, and what to do about it; None if all can."""
    from packaging.requirements import Requirement

    missing = [module for module in modules if find_spec(module) is None]
    if not missing:
        return None
    reason = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    every = (Requirement(text).marker for text in requires(__name__.partition(".")[0]) or ())
    markers = [marker for marker in every if marker and f'extra == "{extra}"' in str(marker)]
    if markers and not any(marker.evaluate({"extra": extra}) for marker in markers):
        return f"{reason}, and there are no wheels for {this_system()}; lower for this target with another Python"
    return f"{reason}: pip install 'pteforge[{extra}]'"
