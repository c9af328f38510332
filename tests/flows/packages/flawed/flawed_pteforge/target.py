"""What the command line reads: without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pteforge.tasks.targets import Target, TargetOptions


class FlawedOptions(TargetOptions):
    """Options of the passes.

    Attributes:
        flaw: what is wrong; None: nothing, and then there are no passes.
        note: means nothing to the passes.
    """

    flaw: Literal["subtracts", "subtracts and forgets", "scales a weight"] | None = None
    note: str = ""


@dataclass(frozen=True)
class Flawed(Target):
    """The portable kernels, by way of wrong passes."""

    options: FlawedOptions

    name: ClassVar[str] = "flawed"
    Options: ClassVar[type[TargetOptions]] = FlawedOptions
    delegates: ClassVar[bool] = False

    def transforming(self) -> dict[str, Any] | None:
        """The flaw alone."""
        return {"flaw": self.options.flaw} if self.options.flaw else None

    def edge_passes(self) -> Sequence[Any]:
        """The one that was asked for."""
        from flawed_pteforge.passes import ForgetfulSubtraction, ScaledWeight, Subtraction

        passes = {
            "subtracts": Subtraction,
            "subtracts and forgets": ForgetfulSubtraction,
            "scales a weight": ScaledWeight,
        }
        return [passes[self.options.flaw]()]
