"""What a produced file contains and what is known of it, as named facts that can be compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ...artifacts.digest import digest_bytes, digest_file, digest_json, is_digest
from ...artifacts.records import Record
from ...formats.nfat.container import is_fat, open_fat
from ...formats.pte.contents import Extent, Method, TensorSpec, ValueSpec
from ...formats.pte.metadata import metadata_json, metadata_of, read_metadata, returning_methods
from ...formats.pte.ptd import ptd_extents
from ...formats.pte.reader import map_file, naming, open_pte, read_pte
from ...tasks.results.delivered import Delivered
from ...tasks.results.finding import AREAS
from .comparison import read_delivered, weight_files


@dataclass(frozen=True, slots=True, order=True)
class Content:
    """Bytes in a file: all delegates of one backend in a method, a tensor, or a whole file.

    Attributes:
        sha256: of the bytes; of the digests of the parts, if there are several.
    """

    size: int
    sha256: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes."""

    size: int


Value = str | int | float | Content | Size


class Item(NamedTuple):
    """What a fact is about: an area (one of `tasks.results.finding.AREAS`), and a name in it."""

    area: str
    name: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a file or a part of it.

    Attributes:
        unnamed: contents without names of their own, by what distinguishes them, such as dtype and shape.
        parts: facts that mean nothing unless both files have the part: a payload, a method, a provenance.
    """

    known: Mapping[Item, Value] = field(default_factory=dict)
    unnamed: Mapping[Item, Sequence[Content]] = field(default_factory=dict)
    parts: Mapping[str, Facts] = field(default_factory=dict)


CONTENTS, PROVENANCE = "contents", "provenance"
"""Names of parts of a snapshot: what is in the file, and what only its provenance says."""


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
        """What is known of a file without reading it."""
        known = dict(_recorded(result))
        file = {item: value for item, value in known.items() if item.area == "file"}
        return cls(result, Facts(file, parts={PROVENANCE: Facts(known)} if result.figures else {}))

    def with_contents(self, contents: Facts) -> Snapshot:
        """The same with other facts about what is in the file; with empty ones, contents never differ."""
        return replace(self, facts=replace(self.facts, parts={**self.facts.parts, CONTENTS: contents}))


def _recorded(result: Delivered) -> Iterator[tuple[Item, Value]]:
    """Its facts that equal files have alike."""
    for fact in result.facts():
        if fact.value is not None and fact.area not in ("times", "places"):
            name = f"{fact.name}, {fact.unit}" if fact.unit in ("dB", "%") else fact.name
            value = Size(int(fact.value)) if fact.unit == "B" else fact.value
            yield Item(fact.area, name), value


def _contents(path: Path) -> Facts:
    """The metadata of a file, and the contents of a plain one or the payloads of a fat one.

    Raises InputError if a file cannot be read, as FileFormatError if one is damaged.
    """
    metadata = {
        Item("metadata", key): ", ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in metadata_json(read_metadata(path)).items()
    }
    contents = _fat(path) if is_fat(open_pte(path)) else _plain(path, "", weight_files(path))
    return replace(contents, known={**contents.known, **metadata})


def _fat(path: Path) -> Facts:
    """The payloads of a fat file, each rebuilt in a temporary folder."""
    known: dict[Item, Value] = {}
    parts: dict[str, Facts] = {}
    for weights in weight_files(path):
        known[Item("file", "weights (.ptd)")] = Content(weights.stat().st_size, digest_file(weights))
    container = open_fat(path, weight_files(path)).container
    known[Item("payloads", "by preference")] = ", ".join(dict.fromkeys(payload.name for payload in container.payloads))
    with TemporaryDirectory(prefix="pteforge-") as folder:
        for index, payload in enumerate(container.payloads):
            file, name = Path(folder) / f"{index}.pte", payload.name
            container.write(payload, file)
            known[Item("payloads", name)] = Content(file.stat().st_size, digest_file(file))
            parts[f"payload {name}"] = _plain(file, f"{name}: ", ())
    return Facts(known, parts=parts)


def _plain(path: Path, prefix: str, weights: Sequence[Path]) -> Facts:
    """The contents of a plain file; `prefix` distinguishes the payloads of a fat one."""
    view = map_file(path)
    with naming(path):
        pte = read_pte(view)
    known: dict[Item, Value] = {}
    for file in weights:
        known[Item("file", "weights (.ptd)")] = Content(file.stat().st_size, digest_file(file))
    returning = returning_methods(pte, metadata_of(pte, view))
    known |= {
        Item("methods", f"{prefix}{method.name}"): _signature(method)
        for method in pte.methods
        if method.name not in returning
    }
    constants = _Contents(prefix)
    for constant in pte.constants:
        state = " (initial state)" if constant.mutable else ""
        kind = f"{_tensor(constant.tensor)}{state}"
        constants.add(constant.tensor.name and f"{constant.tensor.name}{state}", kind, constant.extent, view)
    for named in pte.named_data:
        constants.add_named(named.key, pte.segments[named.segment], view)
    for file in weights:
        outside = map_file(file)
        with naming(file):
            for key, extent in ptd_extents(outside):
                constants.add_named(key, extent, outside)
    parts = {f"method {method.name}": Facts(_method(method, prefix, view)) for method in pte.methods}
    return Facts(known | constants.known, constants.unnamed, parts)


class _Contents:
    """Collects the constants of a file."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.known: dict[Item, Value] = {}
        self.unnamed: defaultdict[Item, list[Content]] = defaultdict(list)

    def add(self, name: str, kind: str, extent: Extent, view: memoryview) -> None:
        content = Content(extent.size, digest_bytes(extent.of(view)))
        item = Item("constants", f"{self.prefix}{name or kind}")
        if name and item not in self.known:
            self.known[item] = content
        else:
            self.unnamed[item].append(content)

    def add_named(self, key: str, extent: Extent, view: memoryview) -> None:
        """Adds a weight of a delegate or of a `.ptd`; several backends call weights by their digests."""
        name = "" if is_digest(key.removeprefix("scale_")) else key
        self.add(name, f"weight of {extent.size} B", extent, view)


def _method(method: Method, prefix: str, view: memoryview) -> dict[Item, Value]:
    name = f"{prefix}{method.name}"
    calls = Counter[str]()
    for operator, number in zip(method.operators, method.operator_calls, strict=True):
        calls[operator] += number
    known: dict[Item, Value] = {Item("operators", f"{name} {operator}"): number for operator, number in calls.items()}
    for backend in dict.fromkeys(delegate.id for delegate in method.delegates):
        extents = [delegate.extent for delegate in method.delegates if delegate.id == backend]
        digests = [digest_bytes(extent.of(view)) for extent in extents]
        sha256 = digests[0] if len(digests) == 1 else digest_json(digests)
        size = sum(extent.size for extent in extents)
        known[Item("delegates", f"{name} {backend}")] = Content(size, sha256, len(extents))
    planned = enumerate(method.planned_memory, 1)
    return known | {Item("memory", f"{name} buffer {index}"): Size(size) for index, size in planned}


def _signature(method: Method) -> str:
    """The signature, such as ``(float32[2, 4]) -> float32[2, 3]``, or the value of a constant method."""
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
class Change(Record):
    """A fact that differs between two files; None on the side that does not have it."""

    area: str
    name: str
    before: Value | None
    after: Value | None


def changes(before: Facts, after: Facts) -> tuple[Change, ...]:
    """All facts that differ, by area. Parts that only one side has are left out."""
    found = dict.fromkeys(_changes(before, after))
    return tuple(sorted(found, key=lambda change: AREAS.index(change.area)))


def _changes(before: Facts, after: Facts) -> Iterator[Change]:
    for item in dict.fromkeys((*before.known, *after.known)):
        old, new = before.known.get(item), after.known.get(item)
        if old != new:
            yield Change(*item, old, new)
    for item in dict.fromkeys((*before.unnamed, *after.unnamed)):
        yield from _unnamed_changes(item, before.unnamed.get(item, ()), after.unnamed.get(item, ()))
    for name, part in before.parts.items():
        if name in after.parts:
            yield from _changes(part, after.parts[name])


def _unnamed_changes(item: Item, before: Sequence[Content], after: Sequence[Content]) -> Iterator[Change]:
    """Pairs what is not equal in its order; numbers it if there is more than one."""
    gone, come = _without(before, after), _without(after, before)
    several = max(len(before), len(after)) > 1
    for index in range(max(len(gone), len(come))):
        old, new = gone[index : index + 1], come[index : index + 1]
        position, _ = (old or new)[0]
        name = f"{item.name} #{position + 1}" if several else item.name
        yield Change(item.area, name, old[0][1] if old else None, new[0][1] if new else None)


def _without(contents: Sequence[Content], others: Sequence[Content]) -> list[tuple[int, Content]]:
    """The contents with their positions, without those that the others have as well, each as often."""
    left = Counter(others)
    rest = []
    for position, content in enumerate(contents):
        if left[content]:
            left[content] -= 1
        else:
            rest.append((position, content))
    return rest
