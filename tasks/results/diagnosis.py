"""What keeps a model from being exported or lowered, and the ways out: findings, and the report of `diagnose`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ...artifacts.records import Record
from ...errors import PteforgeError

Kind = Literal[
    "mode",  # whether torch.export traces in strict mode decides
    "data-dependent",
    "dynamic dimension",
    "missing fake kernel",
    "mismatched fake kernel",
    "graph break",
    "known cause",  # of the table in `tasks.results.causes`
]

_OF_DRAFTS = ("data-dependent", "dynamic dimension", "missing fake kernel", "mismatched fake kernel")

Mode = Literal["strict", "non-strict"]

_ADVICE = re.compile(r" For more information, run with TORCH_LOGS=\"[^\"]*\"\.?| \(Size-like symbols: [^)]*\)")


def without_advice(message: str) -> str:
    """A message of torch's without what it tells those who debug torch, whose place findings take."""
    return _ADVICE.sub("", message)


@dataclass(frozen=True, slots=True)
class Cause(Record):
    """One cause of a failure."""

    kind: Kind
    problem: str
    remedies: tuple[str, ...] = ()  # the best one first
    where: str = ""  # the line of the model's code, such as ``nets.py:12 in forward``; empty if it is not known
    code: str = ""  # that line
    only: Mode | None = None  # the mode of torch.export that meets it; None for both

    def lines(self) -> Iterator[str]:
        """The finding as text, without indentation on its first line."""
        if self.where:
            yield f"{self.where}: {self.code}" if self.code else self.where
        indent = "  " if self.where else ""
        yield f"{indent}{self.problem}"
        yield from (f"  - {remedy}" for remedy in self.remedies)


@dataclass(frozen=True, slots=True)
class Trace(Record):
    """One call of torch.export."""

    strict: bool
    problem: str = ""  # what torch.export raised; empty if it returned a program
    where: str = ""  # as in `Cause`
    code: str = ""

    @property
    def exported(self) -> bool:
        return not self.problem

    @property
    def mode(self) -> Mode:
        return "strict" if self.strict else "non-strict"


@dataclass(frozen=True, slots=True)
class Diagnosis(Record):
    """Whether and how one method can be exported."""

    method: str
    methods: tuple[str, ...]  # all of the model's, in order
    strict: bool  # the model's setting
    attempts: tuple[Trace, ...]  # without strict mode, and with it
    findings: tuple[Cause, ...] = ()
    draft: str = ""  # why torch.export.draft_export failed; empty if it did not

    @property
    def attempt(self) -> Trace:
        """The one with the model's setting."""
        return next(attempt for attempt in self.attempts if attempt.strict == self.strict)

    @property
    def relevant(self) -> tuple[Cause, ...]:
        """The findings that concern the model's setting."""
        return tuple(finding for finding in self.findings if finding.only in (None, self.attempt.mode))

    @property
    def drafted(self) -> tuple[Cause, ...]:
        """What draft export found."""
        return tuple(finding for finding in self.findings if finding.kind in _OF_DRAFTS and finding.only != "strict")

    @property
    def well(self) -> bool:
        return self.attempt.exported and not self.relevant


def add_findings(error: PteforgeError, findings: tuple[Cause, ...]) -> None:
    """Adds causes and ways out to an error, for Python to print below it; an error that has some keeps those."""
    if findings and not error.findings:  # models of one source share one error
        error.findings = findings
        error.add_note(as_text(findings))


def as_text(findings: Sequence[Cause]) -> str:
    """The findings, one below the other."""
    return "\n".join(line for finding in findings for line in finding.lines())
