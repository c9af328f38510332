"""A program as ExecuTorch's runtime takes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from executorch.runtime import Program, Runtime, Verification


@dataclass(frozen=True, slots=True)
class Loadable:
    """A complete program.

    Attributes:
        program: a `.pte` file, or its content.
        data: the `.ptd` file with what it keeps outside; None where it keeps nothing there.
    """

    program: Path | bytes
    data: Path | None = None

    def load(self) -> Program:
        """Loads it, checked as far as ExecuTorch can; raises RuntimeError where that refuses it."""
        return Runtime.get().load_program(
            self.program, verification=Verification.InternalConsistency, data_path=self.data
        )
