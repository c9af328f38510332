"""The figures of a produced file, and the limits on how much worse those of its successor may be."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from ..artifacts.digest import digest_file
from ..artifacts.opening import read_sidecar
from ..artifacts.records import Record, decode
from ..errors import InputError
from ..formats.nfat.fat_file import is_fat, open_fat, payload_program
from ..formats.pte.contents import PteFile
from ..formats.pte.reader import naming, open_pte
from ..tasks.accuracy import AccuracyReport
from ..tasks.figures import Figures
from .figures_text import format_db

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delegation:
    """The calls of a method: of delegates, and of kernels, which run what no delegate took.

    `payload` is empty for a plain file.
    """

    payload: str
    method: str
    delegate_calls: int
    kernel_calls: int

    def __str__(self) -> str:
        payload = f" of payload {self.payload}" if self.payload else ""
        return f"method {self.method}{payload}"


@dataclass(frozen=True, slots=True)
class FileFigures(Record):
    """The figures by which versions of a file are compared.

    Attributes:
        sha256: of the `.pte`.
        size: bytes of the `.pte` and its `.ptd`.
        sqnr_db: the smallest; None if all outputs equal eager's, or if `measured` is false.
        max_abs_error: the largest; None if it is not known.
        score: the lowest of all payloads; None if the recipe has no evaluator.
        delegated: methods of a plain file, or of all payloads of a fat one.
        toolchain: distribution to version.
    """

    model: str
    recipe: str
    sha256: str
    size: int
    sqnr_db: float | None = None
    max_abs_error: float | None = None
    score: float | None = None
    delegated: tuple[Delegation, ...] = ()
    toolchain: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_file(cls, path: Path) -> FileFigures:
        """Reads ``MODEL/RECIPE.pte``, its `.ptd`, and the provenance next to it if it describes this file.

        Raises InputError if a file cannot be read, as FileFormatError if one is damaged.
        """
        delegated = tuple(_delegations(path))
        sha256 = digest_file(path)
        size = sum(file.stat().st_size for file in (path, *weight_files(path)))
        provenance = read_provenance(path, sha256)
        if provenance is None:
            return cls(path.absolute().parent.name, path.stem, sha256, size, delegated=delegated)
        overall = provenance.verification.figures.overall
        return cls(
            provenance.model,
            provenance.recipe,
            sha256,
            size,
            sqnr_db=overall.sqnr_db,
            max_abs_error=overall.max_abs_error,
            score=provenance.accuracy.worst if provenance.accuracy else None,
            delegated=delegated,
            toolchain=dict(provenance.toolchain),
        )

    @property
    def name(self) -> str:
        return f"{self.model}/{self.recipe}"

    @property
    def measured(self) -> bool:
        """Whether it is known how far the outputs are from eager's."""
        return self.max_abs_error is not None


@dataclass(frozen=True, slots=True)
class Gate:
    """A limit on how much worse a file may become.

    Attributes:
        limit: allowed growth as a fraction, loss of SQNR in dB, or drop of the score; 0 for ``delegation``.
    """

    kind: Literal["growth", "sqnr", "score", "delegation"]
    limit: float = 0.0


GATES = "growth=2%, sqnr=1dB, score=0.5% (or score=0.005), delegation"
"""The forms of gates, for help texts and messages."""


def parse_gates(text: str) -> tuple[Gate, ...]:
    """Parses gates such as ``growth=2%,sqnr=1dB,score=0.5%,delegation``; raises InputError that names a wrong part."""
    gates = [_parse_gate(part.strip()) for part in text.split(",")]
    kinds = [gate.kind for gate in gates]
    if repeated := [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1]:
        raise InputError(f"the limit {repeated[0]!r} is given more than once in {text!r}; give it once")
    return tuple(gates)


def regressions(before: FileFigures, after: FileFigures, gates: Sequence[Gate]) -> list[str]:
    """A sentence for each limit that `after` exceeds. A limit that cannot be checked counts as exceeded.

    A score is compared if there was one before, and the methods of a payload if both files have them.
    """
    return [f"{after.name}: {problem}" for gate in gates for problem in _CHECKS[gate.kind](before, after, gate.limit)]


def weight_files(path: Path) -> tuple[Path, ...]:
    """The `.ptd` next to a file, if there is one."""
    sibling = path.with_suffix(".ptd")
    return (sibling,) if sibling.is_file() else ()


def _delegations(path: Path) -> Iterator[Delegation]:
    for payload, program in _programs(path):
        for method in program.methods:
            if not method.constant:
                calls = method.instructions
                yield Delegation(payload, method.name, calls.delegate_calls, calls.kernel_calls)


def _programs(path: Path) -> Iterator[tuple[str, PteFile]]:
    """The programs of all payloads, each of which is verified; that of a plain file has the name ``""``."""
    if not is_fat(program := open_pte(path)):
        yield "", program
        return
    container = open_fat(path, weight_files(path)).container
    for payload in container.payloads:
        with naming(path):
            container.verify(payload)
            program = payload_program(container, payload)
        yield payload.name, program


@dataclass(frozen=True, slots=True)
class _File:
    sha256: str


@dataclass(frozen=True, slots=True)
class _Verification:
    figures: Figures


@dataclass(frozen=True, slots=True)
class Provenance:
    """The part of what the stage `report` writes that is read here."""

    model: str
    recipe: str
    file: _File
    toolchain: Mapping[str, str]
    verification: _Verification
    accuracy: AccuracyReport | None = None


def read_provenance(path: Path, sha256: str) -> Provenance | None:
    """The provenance next to a file with this SHA-256; None if there is none, or it describes another file."""
    try:
        provenance = decode(Provenance, read_sidecar(path.with_suffix(".json")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s is not used, since it is not a file's provenance: %s", path.with_suffix(".json"), error)
        return None
    if provenance.file.sha256 != sha256:
        _log.warning("%s is not used, since it describes another file than %s", path.with_suffix(".json"), path.name)
        return None
    return provenance


_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_FORMS = {
    "growth": re.compile(_NUMBER + r" ?(%)"),
    "sqnr": re.compile(_NUMBER + r" ?(?:dB)?()", re.IGNORECASE),
    "score": re.compile(_NUMBER + r" ?(%?)"),
}


def _parse_gate(part: str) -> Gate:
    name, equals, value = (piece.strip() for piece in part.partition("="))
    if part == "delegation":
        return Gate("delegation")
    if (form := _FORMS.get(name)) and equals and (found := form.fullmatch(value)):
        number, percent = found.groups()
        kind = cast("Literal['growth', 'sqnr', 'score']", name)
        return Gate(kind, float(number) / 100 if percent else float(number))
    raise InputError(f"{part!r} is not a limit; write one or more of {GATES}, separated by commas")


def _growth(before: FileFigures, after: FileFigures, limit: float) -> Iterator[str]:
    growth = after.size / before.size - 1
    if _exceeds(growth, limit):
        yield (
            f"the file grew by {100 * growth:.3g} %, from {before.size} to {after.size} bytes; "
            f"at most {100 * limit:g} % is allowed"
        )


def _sqnr(before: FileFigures, after: FileFigures, limit: float) -> Iterator[str]:
    if unknown := [side for side, file in (("earlier", before), ("new", after)) if not file.measured]:
        yield f"SQNR cannot be compared: the {unknown[0]} file has no provenance with figures next to it"
        return
    loss = _decibels(before) - _decibels(after) if before.sqnr_db != after.sqnr_db else 0.0
    if _exceeds(loss, limit):
        fell = "SQNR fell" + (f" by {loss:.3g} dB," if math.isfinite(loss) else "")
        yield f"{fell} from {format_db(before.sqnr_db)} to {format_db(after.sqnr_db)}; at most {limit:g} dB is allowed"


def _decibels(file: FileFigures) -> float:
    return math.inf if file.sqnr_db is None else file.sqnr_db


def _score(before: FileFigures, after: FileFigures, limit: float) -> Iterator[str]:
    if before.score is None:
        return
    if after.score is None:
        yield f"the score cannot be compared: it was {before.score:.6g}, and the file has none now"
    elif _exceeds(drop := before.score - after.score, limit):
        yield (
            f"the score fell by {drop:.3g}, from {before.score:.6g} to {after.score:.6g}; at most {limit:g} is allowed"
        )


def _delegation(before: FileFigures, after: FileFigures, limit: float) -> Iterator[str]:
    del limit
    known = {(method.payload, method.method): method for method in before.delegated}
    for method in after.delegated:
        earlier = known.get((method.payload, method.method))
        if earlier and method.kernel_calls > earlier.kernel_calls:
            yield (
                f"{method} has {method.kernel_calls} kernel calls outside of delegates; it had {earlier.kernel_calls}"
            )
    payloads = {method.payload for method in after.delegated}
    lost = {method.payload for method in before.delegated if method.delegate_calls} - payloads
    if payloads != {""}:
        yield from (f"payload {payload}, which used delegates, is gone" for payload in sorted(lost - {""}))


def _exceeds(value: float, limit: float) -> bool:
    """Whether it is above the limit; 0.985 - 0.98 is a bit more than 0.005 in binary."""
    return value > limit and not math.isclose(value, limit, rel_tol=1e-9, abs_tol=1e-12)


_CHECKS: Mapping[str, Callable[[FileFigures, FileFigures, float], Iterator[str]]] = {
    "growth": _growth,
    "sqnr": _sqnr,
    "score": _score,
    "delegation": _delegation,
}
