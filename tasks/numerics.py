"""What the ladder of numerics and the comparison of nodes say, as they are stored and shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .figures import Worst

RungName = Literal["exported", "transformed", "quantized", "edge", "payload"]


def rung_label(name: str, specializations: Sequence[str]) -> str:
    """What a rung is called where there are several of its name, for example ``edge.xnnpack+portable``."""
    return f"{name}.{'+'.join(specializations)}" if specializations else name


@dataclass(frozen=True, slots=True)
class Rung:
    """One method of one of the programs that a model goes through, against eager on real inputs.

    Attributes:
        name: which program.
        specializations: the specializations of a fat file that it belongs to; empty where it belongs to all.
        method: name of the method.
        figures: the worst over all outputs; None where there are none.
        problem: why there are none; empty otherwise.
    """

    name: RungName
    specializations: tuple[str, ...]
    method: str
    figures: Worst | None
    problem: str = ""

    @property
    def label(self) -> str:
        """Its name, with specializations where it does not belong to all."""
        return rung_label(self.name, self.specializations)


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs of a recipe, in the order in which its model goes through them."""

    rungs: tuple[Rung, ...]

    def before(self, rung: Rung) -> Rung | None:
        """The rung that it was made from; None for the first, which was made from eager."""
        above = self.rungs[: self.rungs.index(rung)]
        shared = [
            each
            for each in above
            if each.method == rung.method
            and each.name != rung.name
            and (not each.specializations or set(each.specializations) >= set(rung.specializations))
        ]
        return shared[-1] if shared else None

    def ways(self) -> list[list[Rung]]:
        """From the first rung to each one that nothing was made from."""
        made_from = {self.before(rung) for rung in self.rungs}
        ways = []
        for last in self.rungs:
            if last not in made_from:
                way = [last]
                while above := self.before(way[0]):
                    way.insert(0, above)
                ways.append(way)
        return ways

    def to_json(self) -> list[dict[str, Any]]:
        """A JSON array."""
        return [asdict(rung) for rung in self.rungs]

    @classmethod
    def from_json(cls, value: Sequence[dict[str, Any]]) -> Ladder:
        """Inverse of `to_json`."""
        return cls(
            tuple(
                Rung(
                    each["name"],
                    tuple(each["specializations"]),
                    each["method"],
                    Worst(**each["figures"]) if each["figures"] else None,
                    each["problem"],
                )
                for each in value
            )
        )


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """One operator of a program, against its source in the program that this one was made from.

    Attributes:
        node: name of the node.
        operator: for example ``aten.convolution.default``.
        sources: names of the nodes that it stands for, the one whose value it has last.
        module: path of the module that calls it, empty for the model itself.
        line: where the model's code calls it: file, line and function; empty where that is not known.
        own: what it loses by itself, with inputs as they are in the program before; None where `problem` says why.
        passed_on: how far its value is off where everything before it has lost, too.
        problem: its value cannot be compared: NaN, infinity.
    """

    node: str
    operator: str
    sources: tuple[str, ...]
    module: str
    line: str
    own: Worst | None
    passed_on: Worst | None
    problem: str = ""

    @property
    def loses(self) -> bool:
        """Whether its value is another than in the program before."""
        return bool(self.problem) or (self.own is not None and self.own.sqnr_db is not None)

    @property
    def order(self) -> float:
        """Sorts those that lose most first, in dB."""
        if self.own is None:
            return float("-inf")
        return float("inf") if self.own.sqnr_db is None else self.own.sqnr_db


@dataclass(frozen=True, slots=True)
class NodeLosses:
    """What the operators of a program lose.

    Attributes:
        nodes: those that could be compared; the ones that lose most first.
        operators: how many operators the program has.
    """

    nodes: tuple[NodeLoss, ...]
    operators: int

    @property
    def losing(self) -> tuple[NodeLoss, ...]:
        """Those that lose anything; the ones that lose most first."""
        return tuple(node for node in self.nodes if node.loses)

    @property
    def compared(self) -> int:
        """How many operators could be compared."""
        return len(self.nodes)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"nodes": [asdict(node) for node in self.nodes], "operators": self.operators}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> NodeLosses:
        """Inverse of `to_json`."""
        nodes = (
            NodeLoss(
                **{
                    **each,
                    "sources": tuple(each["sources"]),
                    "own": Worst(**each["own"]) if each["own"] else None,
                    "passed_on": Worst(**each["passed_on"]) if each["passed_on"] else None,
                }
            )
            for each in value["nodes"]
        )
        return cls(tuple(nodes), value["operators"])
