"""What the stages that judge numerics read besides their input artifacts."""

from __future__ import annotations

from .numerics import RungName, rung_label
from .params import Params


class RungParams(Params):
    """A rung of the ladder.

    Attributes:
        name: which program.
        specializations: the specializations of a fat file that it belongs to; empty where it belongs to all.
    """

    name: RungName
    specializations: tuple[str, ...] = ()

    def role(self, method: str) -> str:
        """The input that has it: a program of a method, or a payload with all methods."""
        label = rung_label(self.name, self.specializations)
        return f"rung/{label}" if self.name == "payload" else f"rung/{label}/{method}"


class LadderParams(Params):
    """Parameters of `ladder`.

    Attributes:
        rungs: in the order in which a model goes through them.
        methods: the model's.
        drawn_inputs: how many drawn inputs to run, besides the examples.
        host: CPU capability of the machine that all of them run on.
    """

    rungs: tuple[RungParams, ...]
    methods: tuple[str, ...]
    drawn_inputs: int
    host: str = ""


class BisectParams(Params):
    """Parameters of `bisect`.

    Attributes:
        exported_anew: whether the second program was exported by itself and not made from the first.
        inputs: how many of the examples to run at most.
        host: CPU capability of the machine.
    """

    exported_anew: bool = False
    inputs: int = 4
    host: str = ""
