"""Findings: what stages find out about a file. Each has one name from the stage's output to every page.

A finding is a module of this package, called as the role of the stage's output and the key in provenance and JSON.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import PlainSerializer, PlainValidator

from ...artifacts.records import Record
from .tables import format_db, format_seconds, format_size

if TYPE_CHECKING:
    from ...artifacts.ref import ArtifactRef
    from .delivered import Delivered

AREAS = (
    *("file", "payloads", "methods", "operators", "delegates", "constants", "metadata", "numerics", "accuracy"),
    *("quantization", "delegation", "memory", "toolchain", "times", "places"),
)
"""What facts are about, in the order in which they are shown. Of times and places, equal files may have others."""

FINDING = "finding"
"""The kind of artifacts that are findings: JSON of one, or of a list where a file may have several."""

Value = str | int | float


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is known of a file, as tables, notes and comparisons show it.

    Attributes:
        area: what it is about, one of `AREAS`.
        name: unique in its area, such as ``SQNR``; empty for a note that is nothing to compare.
        value: what is compared and sorted by.
        unit: of the value: ``B``, ``s``, ``dB`` or none.
        words: the value for people, where it is more than the value in its unit.
        note: a line about the file.
        telling: whether it asks for something to be done.
        listed: whether the note stands only where everything about the file does.
        column: rank among the columns of tables of files, from 1 on; 0 for none. Narrow tables leave out high ranks.
    """

    area: str
    name: str = ""
    value: Value | None = None
    unit: str = ""
    words: str = ""
    note: str = ""
    telling: bool = False
    listed: bool = False
    column: int = 0

    @property
    def number(self) -> float:
        """The value; outputs that are exact have no noise."""
        return math.inf if self.value == "exact" else float(self.value or 0)

    @property
    def exact(self) -> str:
        """As `text`, with all digits of sizes and scores."""
        if isinstance(self.value, str) or self.unit in ("dB", "s"):
            return self.text
        return f"{self.value} bytes" if self.unit == "B" else f"{self.value:.6g}"

    @property
    def text(self) -> str:
        if self.words or self.value is None:
            return self.words
        if isinstance(self.value, str):
            return self.value
        return _FORMATS[self.unit](self.value)


_FORMATS = {"B": format_size, "s": format_seconds, "dB": format_db, "%": "{:.0f} %".format, "": "{:.4g}".format}


class Finding(Record):
    """Base of findings, which are frozen dataclasses.

    Attributes:
        role: its name: that of its module, of the stage's output, and the key in JSON.
        of: what of a file it is about: ``method`` or ``place``, each with the payload; empty if the file has only one.
    """

    __slots__ = ()

    role: ClassVar[str]
    of: ClassVar[str] = ""

    @classmethod
    def found(cls, values: Any, payload: str = "", subject: str = "") -> tuple[Self, ...]:
        """The findings of a stage's output, which are about a payload, and a method of it or a place."""
        names = {field.name for field in fields(cls)}  # type: ignore[arg-type] # a dataclass
        where = {name: text for name, text in (("payload", payload), (cls.of, subject)) if name in names}
        known = {name: text for name, text in where.items() if text}
        return tuple(cls.from_json({**where, **value, **known}) for value in (values if cls.of else [values]))

    @classmethod
    def facts(cls, found: Sequence[Self], file: Delivered) -> Iterator[Fact]:
        """What all findings of this kind say of a file."""
        raise NotImplementedError

    def brief(self) -> Self:
        """Without what only the provenance has."""
        return self


@cache
def find_finding(name: str) -> type[Finding] | None:
    """The finding of a name: the class in its module; None where there is none, as for those of later versions."""
    if not name.isidentifier() or find_spec(f".{name}", __package__) is None:
        return None
    classes = vars(importlib.import_module(f".{name}", __package__)).values()
    own = (each for each in classes if isinstance(each, type) and issubclass(each, Finding))
    return next((each for each in own if getattr(each, "role", "") == name), None)


def read_findings(refs: Mapping[str, ArtifactRef], read_json: Callable[[ArtifactRef], Any]) -> tuple[Finding, ...]:
    """Findings of stages, by ``ROLE/PAYLOAD/SUBJECT``."""
    found: list[Finding] = []
    for key, ref in refs.items():
        role, payload, subject = key.split("/", 2)
        if kind := find_finding(role):
            found += kind.found(read_json(ref), payload, subject)
    return tuple(found)


def to_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """By name: an object, or a list of objects where a file may have several."""
    made: dict[str, Any] = {}
    for finding in findings:
        if finding.of:
            made.setdefault(finding.role, []).append(finding.to_json())
        else:
            made[finding.role] = finding.to_json()
    return made


def from_json(values: Mapping[str, Any]) -> tuple[Finding, ...]:
    """The findings that this version knows; raises ValueError for what is not their JSON."""
    known = ((find_finding(name), value) for name, value in values.items())
    try:
        return tuple(each for kind, value in known if kind for each in kind.found(value))
    except TypeError as error:  # not objects, or lists of them
        raise ValueError(f"not findings: {error}") from error


Findings = Annotated[tuple[Finding, ...], PlainValidator(from_json), PlainSerializer(to_json)]
"""In a record: their JSON is an object by name."""


def of_method(method: str, payload: str) -> str:
    """A method, and the payload of a fat file that it is in."""
    return f"method {method!r}" + (f" of payload {payload!r}" if payload else "")
