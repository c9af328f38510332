"""Reads calls, bytes and figures of produced files, without torch, and checks limits on regressions."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from ...artifacts.digest import digest_file
from ...errors import FileFormatError, InputError
from ...formats.describe import describe
from ...formats.nfat.container import Container, is_fat, open_fat, payload_program
from ...formats.nfat.contents import Payload
from ...formats.pte.contents import PteFile
from ...formats.pte.reader import naming, open_pte
from ...tasks.results.delivered import Delivered, MethodCalls
from ...tasks.results.finding import Fact

_log = logging.getLogger(__name__)


def read_delivered(path: Path) -> Delivered:
    """Reads ``MODEL/RECIPE.pte``, its `.ptd` and its own provenance; InputError (FileFormatError for damage)."""
    delegated = tuple(
        MethodCalls(payload.name, method["name"], calls["delegate_calls"], calls["kernel_calls"])
        for payload in map_of(path, weight_files(path), verified=True).payloads
        for method in payload.methods
        for calls in (method["instructions"],)
    )
    sha256 = digest_file(path)
    result = Delivered.next_to(path, sha256)
    if result is None:
        if (sidecar := path.with_suffix(".json")).exists():
            problem = "%s is not used, since it is not a file's provenance, or that of another file than %s"
            _log.warning(problem, sidecar, path.name)
        result = Delivered(path.absolute().parent.name, path.stem, "made", digests={"pte": sha256})
    size = sum(file.stat().st_size for file in (path, *weight_files(path)))
    return replace(result, path=path, size=size, delegated=delegated)


def compared(result: Delivered) -> dict[str, Any]:
    """The figures by which versions of a file are compared, as JSON."""
    return {
        "model": result.model,
        "recipe": result.recipe,
        "sha256": result.sha256,
        "size": result.size,
        "sqnr_db": result.sqnr_db,
        "max_abs_error": result.measured and result.measured.max_abs_error,
        "score": result.value("score"),
        "latency": result.value("latency"),
        "delegated": [asdict(method) for method in result.delegated],
        "toolchain": dict(result.toolchain),
    }


_BLOCKS = 40  # blocks of a file that are drawn one by one


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a file: its kind, such as ``constants``, a label, and its bytes."""

    kind: str
    label: str
    size: int


@dataclass(frozen=True, slots=True)
class PayloadMap:
    """The methods of a payload; its name is empty in a plain file."""

    name: str
    methods: tuple[dict[str, Any], ...]  # from `formats.describe.describe`, without constant methods
    problem: str = ""  # why the methods are not known

    @classmethod
    def of(cls, name: str, pte: PteFile) -> PayloadMap:
        return cls(name, tuple(method for method in describe(pte)["methods"] if not method["constant"]))


@dataclass(frozen=True, slots=True)
class FileMap:
    """A `.pte` and its `.ptd`: the payloads, best first, and all bytes by what they hold."""

    payloads: tuple[PayloadMap, ...]
    blocks: tuple[Block, ...]


def map_of(path: Path, data: Sequence[Path], *, verified: bool = False) -> FileMap:
    """Maps a file and its `.ptd`, verifying payloads if `verified`; InputError (FileFormatError for damage)."""
    pte = open_pte(path)
    blocks = _merged([*_blocks(pte), *(Block("external", file.name, file.stat().st_size) for file in data)])
    if not is_fat(pte):
        return FileMap((PayloadMap.of("", pte),), blocks)
    container = open_fat(path, data).container
    if verified:
        with naming(path):
            for payload in container.payloads:
                container.verify(payload)
                payload_program(container, payload)
    return FileMap(tuple(_payload(container, payload) for payload in container.payloads), blocks)


def _payload(container: Container, payload: Payload) -> PayloadMap:
    try:
        return PayloadMap.of(payload.name, payload_program(container, payload))
    except FileFormatError as error:
        return PayloadMap(payload.name, (), str(error))


def _blocks(pte: PteFile) -> Iterator[Block]:
    """The program and each segment that is not inside another; bytes between them are padding."""
    described, inner = describe(pte), pte.inner_segments
    names = {named["segment"]: named["key"] for named in described["named_data"]}
    yield Block("program", "program", pte.program_size)
    outer = [(index, segment) for index, segment in enumerate(described["segments"]) if index not in inner]
    for index, segment in outer:
        held = segment["holds"]
        kind = held[0] if len(held) == 1 else "several" if held else "unused"
        yield Block(kind, names.get(index, " and ".join(held).replace("_", " ") or "unused"), segment["size"])
    rest = pte.size - pte.program_size - sum(segment["size"] for _, segment in outer)
    if rest > 0:
        yield Block("padding", "padding", rest)


def _merged(blocks: list[Block]) -> tuple[Block, ...]:
    """The largest blocks, and one for the rest of each kind."""
    ordered = sorted(blocks, key=lambda block: -block.size)
    rest: dict[str, list[int]] = {}
    for block in ordered[_BLOCKS:]:
        rest.setdefault(block.kind, []).append(block.size)
    others = (Block(kind, f"{len(sizes)} smaller ones", sum(sizes)) for kind, sizes in rest.items())
    return (*ordered[:_BLOCKS], *others)


@dataclass(frozen=True, slots=True)
class Limit:
    """How much worse a file may become."""

    kind: Literal["growth", "sqnr", "score", "latency", "delegation", "proven"]
    most: float = 0.0  # a fraction of size or latency, dB of SQNR, or a drop of score; 0 for delegation and proven


LIMITS = "growth=2%, sqnr=1dB, score=0.5% (or score=0.005), latency=10%, delegation, proven"  # forms, for messages


def parse_limits(text: str) -> tuple[Limit, ...]:
    """Parses limits such as ``growth=2%,sqnr=1dB,score=0.5%,delegation``; raises InputError that names a wrong part."""
    limits = [_parse_limit(part.strip()) for part in text.split(",")]
    kinds = [limit.kind for limit in limits]
    if repeated := [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1]:
        raise InputError(f"the limit {repeated[0]!r} is given more than once in {text!r}; give it once")
    return tuple(limits)


def regressions(before: Delivered, after: Delivered, limits: Sequence[Limit]) -> list[str]:
    """A sentence for each limit that `after` exceeds. A limit that cannot be checked counts as exceeded.

    A score is compared if there was one before, and the methods of a payload if both files have them.
    """
    return [f"{after.name}: {problem}" for limit in limits for problem in _problems(before, after, limit)]


def _problems(before: Delivered, after: Delivered, limit: Limit) -> Iterator[str]:
    match limit.kind:
        case "delegation":
            return _delegation(before, after)
        case "proven":
            return _proven(before, after)
    return _worse(before, after, limit)


def weight_files(path: Path) -> tuple[Path, ...]:
    """The `.ptd` next to a file, if there is one."""
    sibling = path.with_suffix(".ptd")
    return (sibling,) if sibling.is_file() else ()


_NUMBER = r"(\d+(?:\.\d*)?|\.\d+) ?"
_FIGURES = {
    "growth": ("(%)", "file", "size", 1, "the file grew by {}"),
    "sqnr": ("(?:dB)?()", "numerics", "(.+: )?SQNR", -1, "{name} fell by {}"),
    "score": ("(%?)", "accuracy", "score", -1, "the score fell by {}"),
    "latency": ("(%)", "times", "latency of .*", 1, "{name} is {} longer"),
}
"""The unit of a limit, area and names of its facts, whether more is worse (1) or less (-1), and a message."""


def _parse_limit(part: str) -> Limit:
    kind, equals, value = (piece.strip() for piece in part.partition("="))
    if part in ("delegation", "proven"):
        return Limit(cast("Any", part))
    unit = _FIGURES[kind][0] if kind in _FIGURES and equals else None
    if unit and (match := re.fullmatch(_NUMBER + unit, value, re.IGNORECASE)):
        number, percent = match.groups()
        return Limit(cast("Any", kind), float(number) / 100 if percent else float(number))
    raise InputError(f"{part!r} is not a limit; write one or more of {LIMITS}, separated by commas")


def _worse(before: Delivered, after: Delivered, limit: Limit) -> Iterator[str]:
    """Compares facts by name; at least one of those that the earlier file had has to be there."""
    _, area, names, sign, words = _FIGURES[limit.kind]

    def held(file: Delivered) -> dict[str, Fact]:
        facts = (fact for fact in file.facts() if fact.area == area and fact.value is not None)
        return {fact.name: fact for fact in facts if re.fullmatch(names, fact.name)}

    earlier, present = held(before), held(after)
    if earlier and not earlier.keys() & present.keys() and not (after.measured and limit.kind == "sqnr"):
        had = ", ".join(f"{name} was {fact.text}" for name, fact in earlier.items())
        yield f"{limit.kind} cannot be compared: {had}, and the new file has no such figure"
    elif limit.kind == "sqnr" and before.figures is None:
        yield "sqnr cannot be compared: the earlier file has no provenance with figures next to it"
    problems: dict[tuple[float, float], str] = {}  # by values: the file's are those of its worst payload and method
    for name, now in present.items():
        was = earlier.get(name)
        if was is None or was.value == now.value:
            continue
        is_ratio = now.unit in ("B", "s")
        loss = sign * (now.number - was.number) / (was.number if is_ratio else 1)
        # 0.985 - 0.98 is a bit more than 0.005 in binary
        if loss > limit.most and not math.isclose(loss, limit.most, rel_tol=1e-9, abs_tol=1e-12):
            lost_by, most = (
                (f"{100 * number:.3g} %" if is_ratio else f"{number:.3g} {now.unit}".rstrip())
                for number in (loss, limit.most)
            )
            change = words if math.isfinite(loss) else words.replace(" by {}", "")  # outputs were exact
            text = f"{change.format(lost_by, name=name)}, from {was.text} to {now.text}; at most {most} is allowed"
            problems[was.number, now.number] = text
    yield from problems.values()


def _delegation(before: Delivered, after: Delivered) -> Iterator[str]:
    kernel_calls = {(method.payload, method.method): method.kernel_calls for method in before.delegated}
    for method in after.delegated:
        had = kernel_calls.get((method.payload, method.method))
        if had is not None and method.kernel_calls > had:
            yield f"{method} has {method.kernel_calls} kernel calls outside of delegates; it had {had}"
    payloads = {method.payload for method in after.delegated}
    lost = {method.payload for method in before.delegated if method.delegate_calls} - payloads
    if payloads != {""}:
        yield from (f"payload {payload}, which used delegates, is gone" for payload in sorted(lost - {""}))


def _proven(before: Delivered, after: Delivered) -> Iterator[str]:
    for payload, places in after.proven.items():
        what = f"payload {payload}" if payload else "the file"
        if not places:
            reasons = "; ".join(after.why_not_run(payload).values())
            yield f"nothing has run {what}" + (f": it {reasons}" if reasons else "")
        elif lost := [place for place in before.proven_on(payload) if place not in places]:
            yield f"{what} was run on {', '.join(lost)}, and is not any more"
