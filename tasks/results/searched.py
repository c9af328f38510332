"""What a search over the inputs of a file has found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from .figures import Case
from .finding import Fact, Finding
from .tables import format_db

if TYPE_CHECKING:
    from .delivered import Delivered


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
