"""What came of payloads on places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from .figures import WHOLE_FILE, Figures
from .finding import Fact, Finding
from .tables import format_sqnr

if TYPE_CHECKING:
    from .delivered import Delivered


@dataclass(frozen=True, slots=True)
class Proof(Finding):
    """What came of a payload on a place, a runtime besides that of the process that made it."""

    role: ClassVar = "proofs"
    of: ClassVar = "place"

    place: str  # as the zoo calls it
    payload: str  # empty for a plain file
    about: str  # device and driver, as the place says
    figures: Figures | None  # without its cases; None if it was not run
    not_run: str = ""  # why
    no_device: bool = False  # whether that is since a backend of the place finds no device or driver

    @classmethod
    def facts(cls, found: Sequence[Self], file: Delivered) -> Iterator[Fact]:
        """What came of each place, and why it did not run other payloads."""
        for place in dict.fromkeys(proof.place for proof in found):
            proofs = [proof for proof in found if proof.place == place]
            about = f" ({one_line(proofs[0].about)})" if proofs[0].about else ""
            ran = [f"{proof.named(file)}{format_sqnr(proof.figures.overall)}" for proof in proofs if proof.figures]
            if ran:
                yield Fact("places", note=f"on {place}{about}: {', '.join(ran)}", listed=True)
            for reason in dict.fromkeys(proof.not_run for proof in proofs if proof.not_run):
                payloads = [proof.payload or WHOLE_FILE for proof in proofs if proof.not_run == reason]
                yield Fact("places", note=f"not run on {place}: {', '.join(payloads)}: it {reason}", listed=True)

    def named(self, file: Delivered) -> str:
        """The payload before its figures; of a fat file as a whole, the one that was chosen there."""
        chosen = ", ".join(self.figures.payloads) if self.figures else ""
        if self.payload or not chosen:
            return f"{self.payload} " if self.payload else "" if file.payloads == ("",) else "the file "
        return f"the file, which chooses {chosen}, "


def one_line(about: str) -> str:
    """What a place says of itself, shortened."""
    line = ", ".join(about.split("\n"))
    return line if len(line) <= _ABOUT else f"{line[: _ABOUT - 1]}…"


_ABOUT = 100
