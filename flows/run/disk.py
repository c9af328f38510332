"""Estimates the disk space that a run needs, before any stage runs."""

from __future__ import annotations

import logging
import math
import os
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...artifacts.ref import BlobRef
from ...artifacts.store import Store
from ...configs.sources import BuilderSource, ProgramSource
from ...errors import InputError, SourceError, StoreError
from ...formats.checkpoint import ENTRIES, files_of, read_header
from ...tasks.lowering.model import PlannedModel
from ...tasks.results.tables import format_size
from ...tasks.sources import find
from .progress import ExpectedStage
from .session import Session

_log = logging.getLogger(__name__)

_TYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}  # name in safetensors, and bytes
_SMALL = 512  # bytes: smaller tensors are not objects of their own

# Bytes per quantized weight (two bits or more): least and likely in the file, and in the store, unpacked and packed.
_LEAST, _LIKELY, _STORED = 0.25, 1.0, 2.25


@dataclass
class Space:
    """What a run writes to a folder, in bytes: at least, and probably."""

    name: str
    folder: Path
    least: float = 0
    likely: float = 0
    parts: list[str] = field(default_factory=list)  # in words

    def add(self, what: str, likely: float, least: float = 0) -> None:
        self.least, self.likely = self.least + least, self.likely + likely
        if likely >= 2**20:
            self.parts.append(f"{what}: {format_size(round(likely))}")

    @property
    def existing(self) -> Path:
        """The folder, or the one that it will be in."""
        return next(path for path in (self.folder, *self.folder.parents) if path.exists())


@dataclass(frozen=True)
class Weights:
    """Weights of a model, and their bytes in the dtype that it computes in."""

    files: tuple[Path, ...]
    count: int
    size: int
    stored: int  # bytes that the store may copy, rather than find in the checkpoint
    new: int  # bytes of these that the store certainly lacks
    certain: bool  # whether the model certainly has all of them


def check_space(session: Session) -> None:
    """Warns if the disk of the store or the results probably has too little space for the run.

    Estimates what the run writes by headers of weights and what stages wrote the last time; nothing with `refresh`.
    Raises InputError if new weights and results certainly do not fit.
    """
    if session.progress.complete or session.executor.refresh:
        return
    store, results = Space("store", session.store.local.root), Space("results", session.out)
    sizes, seen = {stored.size for stored in session.store.local}, set[tuple[Path, ...]]()
    for model in session.models:
        if model.name not in session.progress.outcomes:
            planned = session.progress.planned.get(model.name, {})
            _add_model(session.store, model, planned, _weights_of(model, sizes), seen, store, results)
    spaces = [store] if session.run_config.on == "local" else []
    if session.part_of is None and not session.request.until:
        spaces.append(results)
    for device in {space.existing.stat().st_dev for space in spaces}:
        _compare([space for space in spaces if space.existing.stat().st_dev == device])


def _compare(spaces: list[Space]) -> None:
    """Compares what is written to folders on one disk with the space on it."""
    folder = spaces[0].existing.resolve()
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    least, likely = (sum(getattr(space, name) for space in spaces) for name in ("least", "likely"))
    if free >= likely:
        return
    certain = free < least
    mount = next(path for path in (folder, *folder.parents) if path.is_mount())
    folders = " and ".join(f"{space.name} in {space.folder}" for space in spaces)
    needed = f"at least {format_size(round(least))}" if certain else f"probably {format_size(round(likely))}"
    problem = (
        f"the disk of {folders} (mounted at {mount}) has {format_size(free)} free, and this run "
        f"writes {needed} to it. Estimate: {'; '.join(part for space in spaces for part in space.parts)}. Free some "
        "space (pteforge store gc), choose another disk with --store or PTEFORGE_CACHE, and --out, or lower fewer "
        "models or recipes at once (--models, --recipes)"
    )
    if certain:
        raise InputError(problem)
    _log.warning("%s", problem)


def _add_model(
    store: Store,
    model: PlannedModel,
    planned: Mapping[str, ExpectedStage],
    weights: Weights | None,
    seen: set[tuple[Path, ...]],
    space: Space,
    results: Space,
) -> None:
    """Adds what a model writes: its own stages, and those of each recipe."""
    due = [slot for slot, stage in planned.items() if stage.seconds is None]
    of_recipes = {recipe.name: [slot for slot in due if recipe.name in slot.split("/")] for recipe in model.recipes}
    exports = [slot for slot in due if planned[slot].stage == "export"]
    objects = _last_objects(store, exports)
    certain = bool(planned) and weights is not None and weights.certain
    if objects:
        space.add(f"{model.name}, as the last time", sum(blob.size for blob in objects))
    elif weights and (exports or not planned) and weights.files not in seen:
        seen.add(weights.files)
        space.add(f"weights of {model.name}", weights.stored, weights.new if certain else 0)
    for recipe in model.recipes:
        what, quantizes = f"{model.name} {recipe.name}", bool(recipe.quantizers or recipe.recipe.transforms)
        if of_recipe := _last_objects(store, of_recipes[recipe.name]) - objects:
            space.add(f"{what}, as the last time", sum(blob.size for blob in of_recipe))
        elif weights and quantizes and of_recipes[recipe.name]:
            whole = certain and not any((store.local.root / "unfinished").glob("*"))  # some may be there already
            space.add(f"{what}, quantized", _STORED * weights.count, _LEAST * weights.count if whole else 0)
        last = [slot for slot in planned if slot == f"{model.name}/serialize/{recipe.name}"]
        if files := _last_objects(store, last, "file", "data"):
            results.add(f"{what}.pte, as the last time", sum(blob.size for blob in files))
        elif weights:
            likely = _LIKELY * weights.count if quantizes else weights.size
            least = _LEAST * weights.count if quantizes else weights.size / 2  # targets may compute in 16 bits
            results.add(f"{what}.pte", likely, least if certain else 0)


def _last_objects(store: Store, slots: Iterable[str], *roles: str) -> set[BlobRef]:
    """Objects that stages made the last time; of all roles if none are named."""
    objects: set[BlobRef] = set()
    for record in filter(None, map(store.ledger.last_run, slots)):
        for role, ref in record.outputs.items():
            if not roles or role in roles:
                with suppress(StoreError):
                    objects.update(store.objects_of(ref))
    return objects


def _weights_of(model: PlannedModel, stored: Collection[int]) -> Weights | None:
    """The weights of a model, if their files are known; `stored` has the sizes of all objects in the store.

    The store refers to a checkpoint's weights, also to bfloat16 that is widened to float32. A tensor that has the size
    of an object may be that object. If a task is named, the model may not use all weights of a file.
    """
    match model.source:
        case ProgramSource(program=program):
            files: tuple[Path, ...] = (program,)
            kept_type, item_size, certain = "", 0, True
        case BuilderSource(builder=builder, kwargs=kwargs, files=declared):
            named = builder.startswith(f"{find.__package__}.")
            if named and kwargs.get("config") is not None:
                return None  # random ones
            files = _weight_files(declared)
            kept_type, item_size = _TYPES[str(kwargs.get("dtype", "float32"))] if named else ("", 0)
            certain = named and not (kwargs.keys() & {"task", "outputs", "weights"})
        case _:
            return None
    count = size = copied = new = 0
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile):
        for file in files:
            for kind, elements, element_size in _tensors(file):
                used = elements * (item_size or element_size)
                count, size = count + elements, size + used
                if kind and kept_type in ("", kind):
                    continue
                copied += used
                if (kind, kept_type) != ("BF16", "F32") and used not in stored and used > _SMALL:
                    new += used
        return Weights(files, count, size, copied, new, certain) if size else None
    return None  # a damaged file, which the stage that reads it reports


def _weight_files(declared: Iterable[Path]) -> tuple[Path, ...]:
    """The files among `declared` that a model reads its weights from."""
    by_name = {file.name: file for file in declared}
    if entries := [by_name[name] for name in ENTRIES if name in by_name]:
        with suppress(SourceError):
            return files_of(entries[0])
    files = ([file for file in by_name.values() if file.suffix == suffix] for suffix in (".safetensors", ".bin"))
    return tuple(next(filter(None, files), ()))


def _tensors(file: Path) -> Iterator[tuple[str, int, int]]:
    """Type, elements and bytes per element of tensors, from a header; torch's archives: unknown, and 4 bytes."""
    if file.suffix != ".safetensors":
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if "/data/" in member.filename and not member.filename.endswith((".json", ".pt")):
                    yield "", member.file_size // 4, 4
        return
    for tensor in read_header(file)[0].values():
        if elements := math.prod(tensor["shape"]):
            begin, end = tensor["data_offsets"]
            yield str(tensor["dtype"]), elements, (end - begin) // elements
