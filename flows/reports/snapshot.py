"""Snapshots of produced files: what is in them and what their provenance says, as named facts to compare."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ...artifacts.digest import digest_bytes, digest_file, digest_json, is_digest
from ...artifacts.records import Record
from ...formats.nfat.container import is_fat, open_fat
from ...formats.pte.contents import Extent, Method, PteFile, TensorSpec, ValueSpec
from ...formats.pte.metadata import metadata_json, metadata_of, read_metadata, returning_methods
from ...formats.pte.ptd import ptd_extents
from ...formats.pte.reader import map_file, naming, open_pte, read_pte
from ...tasks.results.delivered import Delivered
from ...tasks.results.finding import AREAS
from .comparison import read_delivered, weight_files


@dataclass(frozen=True, slots=True, order=True)
class Content:
    """Bytes in a file: all delegates of one backend in a method, a tensor, or a whole file."""

    size: int
    sha256: str  # of the bytes; of the digests of the parts, if there are several
    count: int = 1

    @classmethod
    def of_file(cls, path: Path) -> Content:
        return cls(path.stat().st_size, digest_file(path))


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes."""

    size: int


Value = str | int | float | Content | Size


class Item(NamedTuple):
    """The subject of a fact: an area (one of `tasks.results.finding.AREAS`), and a name in it."""

    area: str
    name: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a file or a part of it."""

    named: Mapping[Item, Value] = field(default_factory=dict)
    unnamed: Mapping[Item, Sequence[Content]] = field(default_factory=dict)  # by what tells them apart, such as dtype
    parts: Mapping[str, Facts] = field(default_factory=dict)  # compared if both files have the payload, method, ...


CONTENTS, PROVENANCE = "contents", "provenance"
"""Names of parts of a snapshot: what is in the file, and what only its provenance says."""
PAYLOAD_VERSION = "executorch of payload "
"""Begins the names of facts about versions that are written into a fat file."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A file at one time."""

    result: Delivered
    facts: Facts

    @classmethod
    def of_file(cls, path: Path) -> Snapshot:
        """Reads a `.pte` with what lies next to it; raises InputError, as `read_delivered` does."""
        return cls.of(read_delivered(path)).with_contents(_contents(path))

    @classmethod
    def of(cls, result: Delivered) -> Snapshot:
        """The facts that are recorded about a file, without reading it."""
        recorded = dict(_recorded(result))
        file = {item: value for item, value in recorded.items() if item.area == "file"}
        return cls(result, Facts(file, parts={PROVENANCE: Facts(recorded)} if result.figures else {}))

    def with_contents(self, contents: Facts) -> Snapshot:
        """Adds facts about what is in the file; with empty ones, contents never differ."""
        return replace(self, facts=replace(self.facts, parts={**self.facts.parts, CONTENTS: contents}))


def _recorded(result: Delivered) -> Iterator[tuple[Item, Value]]:
    """The facts that are the same for equal files."""
    for fact in result.facts():
        if fact.value is not None and fact.area not in ("times", "places"):
            name = f"{fact.name}, {fact.unit}" if fact.unit in ("dB", "%") else fact.name
            value = Size(int(fact.value)) if fact.unit == "B" else fact.value
            yield Item(fact.area, name), value


def _contents(path: Path) -> Facts:
    """Metadata of a file, and contents of a plain or payloads of a fat one; InputError (FileFormatError for damage)."""
    metadata = {
        Item("metadata", key): ", ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in metadata_json(read_metadata(path)).items()
    }
    weights = weight_files(path)
    contents = _fat(path, weights) if is_fat(open_pte(path)) else _plain(path, "", weights)
    whole = {Item("file", "weights (.ptd)"): Content.of_file(file) for file in weights}
    return replace(contents, named={**whole, **contents.named, **metadata})


def _fat(path: Path, weights: Sequence[Path]) -> Facts:
    """The payloads of a fat file, each rebuilt in a temporary folder."""
    container = open_fat(path, weights).container
    names = ", ".join(dict.fromkeys(payload.name for payload in container.payloads))
    named: dict[Item, Value] = {Item("payloads", "by preference"): names}
    parts: dict[str, Facts] = {}
    with TemporaryDirectory(prefix="pteforge-") as folder:
        for index, payload in enumerate(container.payloads):
            file, name = Path(folder) / f"{index}.pte", payload.name
            container.write(payload, file)
            named[Item("payloads", name)] = Content.of_file(file)
            if version := payload.description.executorch_version:
                named[Item("toolchain", f"{PAYLOAD_VERSION}{name}")] = version
            parts[f"payload {name}"] = _plain(file, f"{name}: ", ())
    return Facts(named, parts=parts)


def _plain(path: Path, prefix: str, weights: Sequence[Path]) -> Facts:
    """The contents of a plain file; `prefix` distinguishes the payloads of a fat one."""
    view = map_file(path)
    with naming(path):
        pte = read_pte(view)
    returning = returning_methods(pte, metadata_of(pte, view))
    named: dict[Item, Value] = {
        Item("methods", f"{prefix}{method.name}"): _signature(method)
        for method in pte.methods
        if method.name not in returning
    }
    unnamed: defaultdict[Item, list[Content]] = defaultdict(list)
    for name, kind, content in _constants(pte, view, weights):
        item = Item("constants", f"{prefix}{name or kind}")
        if name and item not in named:
            named[item] = content
        else:
            unnamed[item].append(content)
    parts = {f"method {method.name}": Facts(_method(method, prefix, view)) for method in pte.methods}
    return Facts(named, unnamed, parts)


def _constants(pte: PteFile, view: memoryview, weights: Sequence[Path]) -> Iterator[tuple[str, str, Content]]:
    """The name of each constant, empty if it has none, its kind and content."""
    for constant in pte.constants:
        name, state = constant.tensor.name, " (initial state)" if constant.mutable else ""
        yield name and f"{name}{state}", f"{_tensor(constant.tensor)}{state}", _content(constant.extent, view)
    for data in pte.named_data:
        yield _weight(data.key, pte.segments[data.segment], view)
    for file in weights:
        outside = map_file(file)
        with naming(file):
            for key, extent in ptd_extents(outside):
                yield _weight(key, extent, outside)


def _weight(key: str, extent: Extent, view: memoryview) -> tuple[str, str, Content]:
    """A weight of a delegate or of a `.ptd`; several backends name weights by their digests."""
    name = "" if is_digest(key.removeprefix("scale_")) else key
    return name, f"weight of {extent.size} B", _content(extent, view)


def _content(extent: Extent, view: memoryview) -> Content:
    return Content(extent.size, digest_bytes(extent.of(view)))


def _method(method: Method, prefix: str, view: memoryview) -> dict[Item, Value]:
    name = f"{prefix}{method.name}"
    calls = Counter[str]()
    for operator, number in zip(method.operators, method.operator_calls, strict=True):
        calls[operator] += number
    named: dict[Item, Value] = {Item("operators", f"{name} {operator}"): number for operator, number in calls.items()}
    for backend in dict.fromkeys(delegate.id for delegate in method.delegates):
        extents = [delegate.extent for delegate in method.delegates if delegate.id == backend]
        digests = [digest_bytes(extent.of(view)) for extent in extents]
        sha256 = digests[0] if len(digests) == 1 else digest_json(digests)
        size = sum(extent.size for extent in extents)
        named[Item("delegates", f"{name} {backend}")] = Content(size, sha256, len(extents))
    planned = enumerate(method.planned_memory, 1)
    return named | {Item("memory", f"{name} buffer {index}"): Size(size) for index, size in planned}


def _signature(method: Method) -> str:
    """A signature such as ``(float32[2, 4]) -> float32[2, 3]``, or the value of a constant method."""
    outputs = ", ".join(map(_value, method.outputs))
    return outputs if method.constant else f"({', '.join(map(_value, method.inputs))}) -> {outputs}"


def _value(value: ValueSpec) -> str:
    if isinstance(value, TensorSpec):
        return _tensor(value)
    return f"{value.kind} {value.value}" if value.value is not None else value.kind


def _tensor(tensor: TensorSpec) -> str:
    bounds = "" if tensor.dynamism == "static" else f" {tensor.dynamism}"
    order = "" if list(tensor.dim_order) == sorted(tensor.dim_order) else f" order {list(tensor.dim_order)}"
    return f"{tensor.dtype}{list(tensor.shape)}{bounds}{order}"


@dataclass(frozen=True, slots=True)
class Difference(Record):
    """A fact that differs between two files; None on the side that does not have it."""

    area: str
    name: str
    before: Value | None
    after: Value | None


def changes(before: Facts, after: Facts) -> tuple[Difference, ...]:
    """All facts that differ, by area. Parts that only one side has are left out."""
    distinct = dict.fromkeys(_changes(before, after))
    return tuple(sorted(distinct, key=lambda change: AREAS.index(change.area)))


def latencies(before: Delivered, after: Delivered) -> tuple[Difference, ...]:
    """How long methods take, as measured for both files in one place on machines of one kind."""
    earlier, later = (
        {fact.name: fact.value for fact in file.facts() if fact.area == "times" and fact.note}
        for file in (before, after)
    )
    return tuple(Difference("times", f"{name}, s", earlier[name], later[name]) for name in earlier if name in later)


def _changes(before: Facts, after: Facts) -> Iterator[Difference]:
    for item in dict.fromkeys((*before.named, *after.named)):
        old, new = before.named.get(item), after.named.get(item)
        if old != new and not _is_rounding(old, new):
            yield Difference(*item, old, new)
    for item in dict.fromkeys((*before.unnamed, *after.unnamed)):
        yield from _unnamed_changes(item, before.unnamed.get(item, ()), after.unnamed.get(item, ()))
    for name, part in before.parts.items():
        if name in after.parts:
            yield from _changes(part, after.parts[name])


def _is_rounding(old: Value | None, new: Value | None) -> bool:
    """Whether figures differ by less than is shown: kernels of two releases add up in another order."""
    return isinstance(old, float) and isinstance(new, float) and math.isclose(old, new, rel_tol=1e-4)


def _unnamed_changes(item: Item, before: Sequence[Content], after: Sequence[Content]) -> Iterator[Difference]:
    """Pairs the contents that differ, in order; numbers them if there are several."""
    gone, come = _without(before, after), _without(after, before)
    several = max(len(before), len(after)) > 1
    for index in range(max(len(gone), len(come))):
        old, new = gone[index : index + 1], come[index : index + 1]
        position, _ = (old or new)[0]
        name = f"{item.name} #{position + 1}" if several else item.name
        yield Difference(item.area, name, old[0][1] if old else None, new[0][1] if new else None)


def _without(contents: Sequence[Content], others: Sequence[Content]) -> list[tuple[int, Content]]:
    """The contents with their positions, except those that the others have as often."""
    left = Counter(others)
    rest = []
    for position, content in enumerate(contents):
        if left[content]:
            left[content] -= 1
        else:
            rest.append((position, content))
    return rest
