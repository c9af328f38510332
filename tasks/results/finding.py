"""Findings: what stages find out about a file. The name of each is the output's role, and the key in all JSON."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
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
"""What facts are about, in the order in which they are shown. Equal files may differ in times and places."""

_TASKS = Path(__file__).parents[1]

TAKEN = (
    *("assets", "backends", "bad_input", "cancelled", "constants", "container", "contract", "data"),
    *("external", "file", "findings", "initial_states", "kernels", "left_out", "log_tail"),
    *("max_abs_error", "max_relative_error", "metadata", "methods", "named_data", "outside"),
    *("problem", "program_size", "proven_on", "reason", "rejected", "seconds", "segment_base"),
    *("segments", "sha256", "size", "sqnr_db", "status", "step", "user_code", "verified"),
    *("version", "weights"),
)
"""Names that no finding can have: other keys of the JSON of ``pteforge export`` and ``pteforge inspect``."""

FINDING = "finding"  # kind of artifacts that are findings: JSON of one, or of a list if a file may have several
Value = str | int | float


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is known of a file, as tables, notes and comparisons show it."""

    area: str  # one of `AREAS`
    name: str = ""  # unique in its area, such as ``SQNR``; empty for a note without a value
    value: Value | None = None  # what is compared and sorted by
    unit: str = ""  # of the value: ``B``, ``s``, ``dB``, ``%`` or none
    words: str = ""  # the value for people, unless that is the value in its unit
    note: str = ""  # a line about the file
    telling: bool = False  # whether it asks for something to be done
    listed: bool = False  # whether only complete lists have the note
    column: int = 0  # rank among the columns of tables of files, or 0 for none; narrow tables leave out high ranks
    lower_is_better: bool = False  # of two files in a column

    def __str__(self) -> str:
        return self.text or self.note

    @property
    def number(self) -> float:
        """The value; outputs that are exact have no noise."""
        return math.inf if self.value == "exact" else float(self.value or 0)

    @property
    def text(self) -> str:
        if self.words or self.value is None:
            return self.words
        if isinstance(self.value, str):
            return self.value
        return _FORMATS[self.unit](self.value)


_FORMATS = {"B": format_size, "s": format_seconds, "dB": format_db, "%": "{:.0f} %".format, "": "{:.4g}".format}


class Finding(Record):
    """Base of findings, which are frozen dataclasses."""

    __slots__ = ()

    role: ClassVar[str]  # its name
    of: ClassVar[str] = ""  # ``method`` or ``place``, each with the payload; empty if the file has one finding only

    def __init_subclass__(cls) -> None:
        if cls.role in TAKEN:
            raise TypeError(f"{cls.__name__}: the role {cls.role!r} is another key of JSON about files")

    @classmethod
    def found(cls, values: Any, payload: str = "", subject: str = "") -> tuple[Self, ...]:
        """Findings from a stage's output about a payload, and a method of it or a place."""
        names = {field.name for field in fields(cls)}  # type: ignore[arg-type] # a dataclass
        where = {name: text for name, text in (("payload", payload), (cls.of, subject)) if name in names}
        known = {name: text for name, text in where.items() if text}
        return tuple(cls.from_json({**where, **value, **known}) for value in (values if cls.of else [values]))

    @classmethod
    def facts(cls, findings: Sequence[Self], file: Delivered) -> Iterator[Fact]:  # noqa: ARG003 - for those that use it
        """What all findings of this kind say of a file."""
        return iter(())

    def brief(self) -> Self:
        """Leaves out what only the provenance has."""
        return self


@cache
def _kinds() -> dict[str, type[Finding]]:
    """All findings by role, of all modules of this package."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f".{module.name}", __package__)
    return {kind.role: kind for kind in Finding.__subclasses__()}


@cache
def _kind(role: str) -> type[Finding] | None:
    """The finding of a role: of this package, or in the file of the stage with that name. None if there is none."""
    if (kind := _kinds().get(role)) is None and role.isidentifier():
        for path in _TASKS.glob(f"*/stages/{role}.py"):
            importlib.import_module(f"..{path.parts[-3]}.stages.{role}", __package__)
        kind = {kind.role: kind for kind in Finding.__subclasses__()}.get(role)
    return kind


def read_findings(refs: Mapping[str, ArtifactRef], read_json: Callable[[ArtifactRef], Any]) -> tuple[Finding, ...]:
    """Findings of stages, by ``ROLE/PAYLOAD/SUBJECT``."""
    findings: list[Finding] = []
    for key, ref in refs.items():
        role, payload, subject = key.split("/", 2)
        if kind := _kind(role):  # a later version may have others
            findings += kind.found(read_json(ref), payload, subject)
    return tuple(findings)


def to_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """JSON by name: an object, or a list of objects where a file may have several."""
    by_name: dict[str, Any] = {}
    for finding in findings:
        if finding.of:
            by_name.setdefault(finding.role, []).append(finding.to_json())
        else:
            by_name[finding.role] = finding.to_json()
    return by_name


def from_json(values: Mapping[str, Any]) -> tuple[Finding, ...]:
    """The findings that this version knows; raises ValueError for what is not their JSON."""
    try:
        return tuple(finding for key, value in values.items() if (kind := _kind(key)) for finding in kind.found(value))
    except (TypeError, AttributeError) as error:  # not objects, or lists of them
        raise ValueError(f"not findings: {error}") from error


Findings = Annotated[tuple[Finding, ...], PlainValidator(from_json), PlainSerializer(to_json)]
"""The findings of a record, whose JSON is an object by name."""


def of_method(method: str, payload: str) -> str:
    """A method, and the payload of a fat file that it is in."""
    return f"method {method!r}" + (f" of payload {payload!r}" if payload else "")
