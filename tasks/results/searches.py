"""What searches come to: for inputs on which a file is wrong, and for the layers that a quantizer has to leave out.

Those are as few as the accuracy gate lets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from ...artifacts.records import Record
from .figures import Case
from .finding import Fact, Finding
from .numerics import NodeLosses
from .tables import format_db

if TYPE_CHECKING:
    from .delivered import Delivered

FOUND = ".found.yaml"
"""The ending of the name of a recipe that a search has found."""


@dataclass(frozen=True, slots=True)
class Searched(Finding):
    """What a search over the inputs of a file has found."""

    role: ClassVar = "searched"

    seconds: float  # that it was given
    cases: int  # inputs on which the file was compared with its program
    refused: int  # inputs that the program refuses, or makes NaN or infinity of
    differing: int  # inputs of which a second call returned other bits
    worst: Case | None  # against the program, not against eager; None if all outputs were equal
    problem: str = ""  # how the worst is out of bounds; empty if it is not
    unsteady: bool = False  # whether it is not always so

    @classmethod
    def facts(cls, found: Sequence[Self], file: Delivered) -> Iterator[Fact]:  # noqa: ARG003 - the base's
        """How many inputs were searched, how long, and which was worst; it stands out where answers differ."""
        for searched in found:
            worst, text = searched.worst, f"searched {searched.cases} inputs in {searched.seconds:g} s, worst "
            if worst and worst.counted:
                text += f"{worst.equal} of {worst.counted} equal"
            else:
                text += format_db(worst.sqnr_db if worst else None)
            text += f" at {worst.label.removeprefix('searched ')}" if worst else ""
            often = f"; {searched.differing} returned other bits when they were repeated" if searched.differing else ""
            if searched.cases:
                yield Fact("numerics", note=f"{text}{often}", telling=bool(often))


@dataclass(frozen=True, slots=True)
class Attempt(Record):
    """A file that was made and scored."""

    layers: int  # how many of the ranked layers are in floating point
    score: float  # the lowest of its payloads
    passes: bool


@dataclass(frozen=True, slots=True)
class FoundLayers(Finding):
    """The result of a search."""

    role: ClassVar = "search"

    layers: tuple[str, ...]  # module names, those that lose most first
    exclude: tuple[str, ...]  # them, after the recipe's own patterns
    ranked: int  # how many layers lose something by quantization
    attempts: tuple[Attempt, ...]
    float_size: int  # bytes of the exported programs, of which nearly all are weights

    @property
    def label(self) -> str:
        """The layers in words, for example ``3 of 12 layers (head, stem, blocks.0)``."""
        names = f" ({', '.join(self.layers)})" if self.layers else ""
        return f"{len(self.layers)} of {self.ranked} layers{names}" if self.ranked else "no layer"

    @classmethod
    def facts(cls, found: Sequence[Self], file: Delivered) -> Iterator[Fact]:
        """Which layers stay in floating point, what that costs, and where the recipe is that was found."""
        for search in found if file.path else ():
            share, scored = file.size / search.float_size, len(search.attempts)
            yield Fact(
                "quantization",
                note=f"in floating point: {search.label}; {share:.2f} of the floating-point size; {scored} files were "
                f"scored; the recipe is in {file.recipe}{FOUND}",
            )


def next_count(attempts: Sequence[Attempt], ranked: int) -> int | None:
    """How many layers to leave out next; None if the search is over.

    None, one, and then twice as many until a file passes; then halving what is between the most that do not pass and
    the fewest that do. One ranked layer is left to quantize.
    """
    fails = max((attempt.layers for attempt in attempts if not attempt.passes), default=-1)
    passes = min((attempt.layers for attempt in attempts if attempt.passes), default=None)
    if passes is not None:
        return None if passes - fails <= 1 else (passes + fails) // 2
    most = max(ranked - 1, 0)
    return None if fails >= most else min(max(2 * fails, fails + 1), most)


def rank_layers(losses: Iterable[NodeLosses]) -> tuple[str, ...]:
    """Names of the modules whose operators lose something by themselves, the largest loss first.

    Modules with such modules inside are left out: their patterns would take those with them.
    """
    worst: dict[str, float] = {}
    for node in (node for method in losses for node in method.losing if node.module):
        worst[node.module] = min(node.order, worst.get(node.module, node.order))
    layers = [name for name in worst if not any(other.startswith(f"{name}.") for other in worst)]
    return tuple(sorted(layers, key=lambda name: (worst[name], name)))
