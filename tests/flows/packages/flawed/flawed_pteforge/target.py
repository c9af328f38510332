"""The part that the command line loads, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pteforge.tasks.targets import Target, TargetOptions


class FlawedOptions(TargetOptions):
    """Options of the passes.

    Attributes:
        flaw: the mistake; None for no pass at all.
        note: an option that no pass reads.
    """

    flaw: Literal["subtracts", "subtracts and forgets", "scales a weight"] | None = None
    note: str = ""


@dataclass(frozen=True)
class Flawed(Target):
    """Portable kernels after wrong passes."""

    options: FlawedOptions

    name: ClassVar[str] = "flawed"
    Options: ClassVar[type[TargetOptions]] = FlawedOptions
    delegates: ClassVar[bool] = False

    def pass_options(self) -> dict[str, Any] | None:
        return {"flaw": self.options.flaw} if self.options.flaw else None

    def edge_passes(self) -> Sequence[Any]:
        from flawed_pteforge.passes import ForgetfulSubtraction, ScaledWeight, Subtraction

        passes = {
            "subtracts": Subtraction,
            "subtracts and forgets": ForgetfulSubtraction,
            "scales a weight": ScaledWeight,
        }
        return [passes[self.options.flaw]()]
