"""The figures of a produced file, and the limits on how much worse those of its successor may be."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from ...artifacts.digest import digest_file
from ...errors import InputError
from ...tasks.results.delivered import Delivered, MethodCalls
from .figures_text import format_db
from .file_map import map_of

_log = logging.getLogger(__name__)


def read_delivered(path: Path) -> Delivered:
    """Reads ``MODEL/RECIPE.pte``, its `.ptd`, and the provenance next to it if it describes this file.

    Raises InputError if a file cannot be read, as FileFormatError if one is damaged.
    """
    delegated = tuple(
        MethodCalls(payload.name, method["name"], calls["delegate_calls"], calls["kernel_calls"])
        for payload in map_of(path, weight_files(path), verified=True).payloads
        for method in payload.methods
        for calls in (method["instructions"],)
    )
    sha256 = digest_file(path)
    made = Delivered.next_to(path, sha256)
    if made is None:
        if (sidecar := path.with_suffix(".json")).exists():
            _log.warning(
                "%s is not used, since it is not a file's provenance, or that of another file than %s",
                sidecar,
                path.name,
            )
        made = Delivered(path.absolute().parent.name, path.stem, "made", digests={"pte": sha256})
    size = sum(file.stat().st_size for file in (path, *weight_files(path)))
    return replace(made, path=path, size=size, delegated=delegated)


def compared(made: Delivered) -> dict[str, Any]:
    """The figures by which versions of a file are compared, as JSON."""
    return {
        "model": made.model,
        "recipe": made.recipe,
        "sha256": made.sha256,
        "size": made.size,
        "sqnr_db": made.sqnr_db,
        "max_abs_error": made.figures and made.figures.overall.max_abs_error,
        "score": made.score,
        "delegated": [asdict(method) for method in made.delegated],
        "toolchain": dict(made.toolchain),
    }


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


def regressions(before: Delivered, after: Delivered, gates: Sequence[Gate]) -> list[str]:
    """A sentence for each limit that `after` exceeds. A limit that cannot be checked counts as exceeded.

    A score is compared if there was one before, and the methods of a payload if both files have them.
    """
    return [f"{after.name}: {problem}" for gate in gates for problem in _CHECKS[gate.kind](before, after, gate.limit)]


def weight_files(path: Path) -> tuple[Path, ...]:
    """The `.ptd` next to a file, if there is one."""
    sibling = path.with_suffix(".ptd")
    return (sibling,) if sibling.is_file() else ()


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


def _growth(before: Delivered, after: Delivered, limit: float) -> Iterator[str]:
    growth = after.size / before.size - 1
    if _exceeds(growth, limit):
        yield (
            f"the file grew by {100 * growth:.3g} %, from {before.size} to {after.size} bytes; "
            f"at most {100 * limit:g} % is allowed"
        )


def _sqnr(before: Delivered, after: Delivered, limit: float) -> Iterator[str]:
    if unknown := [side for side, file in (("earlier", before), ("new", after)) if file.figures is None]:
        yield f"SQNR cannot be compared: the {unknown[0]} file has no provenance with figures next to it"
        return
    loss = _decibels(before) - _decibels(after) if before.sqnr_db != after.sqnr_db else 0.0
    if _exceeds(loss, limit):
        fell = "SQNR fell" + (f" by {loss:.3g} dB," if math.isfinite(loss) else "")
        yield f"{fell} from {format_db(before.sqnr_db)} to {format_db(after.sqnr_db)}; at most {limit:g} dB is allowed"


def _decibels(file: Delivered) -> float:
    return math.inf if file.sqnr_db is None else file.sqnr_db


def _score(before: Delivered, after: Delivered, limit: float) -> Iterator[str]:
    if before.score is None:
        return
    if after.score is None:
        yield f"the score cannot be compared: it was {before.score:.6g}, and the file has none now"
    elif _exceeds(drop := before.score - after.score, limit):
        yield (
            f"the score fell by {drop:.3g}, from {before.score:.6g} to {after.score:.6g}; at most {limit:g} is allowed"
        )


def _delegation(before: Delivered, after: Delivered, limit: float) -> Iterator[str]:
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


_CHECKS: Mapping[str, Callable[[Delivered, Delivered, float], Iterator[str]]] = {
    "growth": _growth,
    "sqnr": _sqnr,
    "score": _score,
    "delegation": _delegation,
}
