"""The target contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.pass_base import ExportedProgramPassBase
    from executorch.exir.pass_manager import PassType
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer


class TargetOptions(BaseModel):
    """Base of a target's options: what a recipe writes under ``options``. Frozen; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Target:
    """How to lower for one backend, with its options. Subclasses are frozen dataclasses that add nothing to `options`.

    A target is data and a few pure functions of its options. It is found by name in the entry-point group
    ``pteforge.targets``, made anew in every process that needs it, and keeps no state. Its module must be importable
    without torch and ExecuTorch: import them inside `partitioners`.

    Attributes:
        options: the options, of the class that `Options` names.
        name: what recipes call it.
        Options: type of its options.
        QuantizerOptions: type of its quantizer's options; None where it has no quantizer.
        folds_weights: whether programs that its quantizer annotates hold their weights as integers, and not as floating
            point numbers that are quantized in the graph.
        backends: the runtime backends its payload may need, by the ids that the device registers. Empty: none.
        extra: the pip extra of pteforge that installs what it needs, None where the base installation has all.
        distributions: packages besides torch and executorch whose versions its result depends on.
        reproducible: whether the same inputs give the same bytes each time.
        delegates: whether it has partitioners at all; without, programs go from `edge` to `compile` as they are.
        quantized_only: whether it claims nothing of a model that was not quantized.
    """

    options: TargetOptions

    name: ClassVar[str]
    Options: ClassVar[type[TargetOptions]] = TargetOptions
    QuantizerOptions: ClassVar[type[TargetOptions] | None] = None
    folds_weights: ClassVar[bool] = True
    backends: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str | None] = None
    distributions: ClassVar[tuple[str, ...]] = ()
    reproducible: ClassVar[bool] = True
    delegates: ClassVar[bool] = True
    quantized_only: ClassVar[bool] = False

    @classmethod
    def available(cls) -> str | None:
        """Why this target cannot lower on this machine, in words that say what to install; None where it can.

        Called before any work starts, in a process without torch: look for packages, do not import them.
        """
        return None

    def preserving(self) -> dict[str, Any] | None:
        """The options that decide which operators `edge` leaves undecomposed, as JSON; None where it decomposes all.

        Specializations with equal answers of one target share their edge programs.
        """
        return None

    @classmethod
    def quantizer(cls, options: TargetOptions) -> Quantizer:
        """The PT2E quantizer, for a target that has `QuantizerOptions`. Called in worker processes only.

        Args:
            options: of the class that `QuantizerOptions` names.
        """
        raise NotImplementedError(f"target {cls.name!r} has no quantizer: {options}")

    def transforming(self) -> dict[str, Any] | None:
        """The options that decide which passes `edge` runs, as JSON; None where the target has no passes of its own.

        Targets without passes can share their edge programs, see `preserving`.
        """
        return None

    def edge_passes(self) -> Sequence[PassType | ExportedProgramPassBase]:
        """The passes to run over each method's edge program, before the partitioners; see `transforming`.

        Called in worker processes only. A pass that hands on the `meta` of what it replaces (as ExportPass does) keeps
        its operators comparable with the model's own: `pteforge bisect` finds out by it what they came from.
        """
        return ()

    def refuses(self, program: ExportedProgram) -> str | None:  # noqa: ARG002 - for those that do refuse something
        """What of a program the partitioners would claim and the backend then fail on, in words that say what to do.

        Args:
            program: an Edge program, before it is partitioned.
        """
        return None

    def partitioners(self) -> Sequence[Partitioner]:
        """The partitioners to run one after another on each method; empty where nothing is delegated.

        Called in worker processes only. Importing ExecuTorch's backends here is what makes them known to it.
        """
        return ()
