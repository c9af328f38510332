"""The key fields of a model's source: its code, arguments and files, and what it was observed to load and to read."""

from __future__ import annotations

import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ....artifacts.digest import Digest, digest_file, digest_json
from ....configs.sources import BuilderSource, ProgramSource, names_model
from ....errors import SourceError
from ..stage import CallableParams, Params
from .code import JSON, PTEFORGE, file_digest, module_closure, read_module
from .inputs import input_fields, is_input, numbered
from .loaded import module_file
from .search import ModuleOrigin, ModuleSearch, distribution_versions

if TYPE_CHECKING:
    from ..runner import StageCall

# torch/csrc/export/pt2_archive_constants.h. All members are in one folder, named after the file as it was written.
_FORMAT_NAME = "archive_format"
_FORMAT = b"pt2"
_PROGRAM_NAME = "models/model.json"
# Written up to torch 2.7; torch.export.load still reads it.
_FORMER_PROGRAM_NAME = "serialized_exported_program.json"


def check_program_file(path: Path) -> None:
    """Raises SourceError unless `path` is an archive with one exported program; checks the sum of every member."""
    if not path.is_file():
        raise SourceError(f"there is no program file {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            problem = _problem_of_archive(archive)
    except OSError as error:
        raise SourceError(f"program file {path} cannot be read: {error}") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise SourceError(f"program file {path} is damaged or no .pt2 file: {error}") from error
    if problem:
        raise SourceError(f"program file {path} {problem}")


def _problem_of_archive(archive: zipfile.ZipFile) -> str | None:
    # The example inputs are an archive within the archive: zipfile may find that one in a file that was cut off.
    if min((member.header_offset for member in archive.infolist()), default=0) > 0:
        return "is damaged or no .pt2 file: it was cut off, or other bytes stand before the archive"
    damaged = archive.testzip()
    if damaged is not None:
        return f"is damaged: {damaged} in it does not have the content that was written"
    names = set(archive.namelist())
    if _FORMER_PROGRAM_NAME in names:
        return None
    root = next(iter(names), "").partition("/")[0]
    format_name = f"{root}/{_FORMAT_NAME}"
    if format_name not in names or archive.read(format_name) != _FORMAT:
        return "is a zip archive, but not one that torch.export.save writes" + _other_kind(names, root)
    if f"{root}/{_PROGRAM_NAME}" not in names:
        return "holds no exported program called 'model', which is what torch.export.save writes"
    return None


def _other_kind(names: set[str], root: str) -> str:
    if f"{root}/data.pkl" not in names:
        return ""
    if f"{root}/constants.pkl" in names:
        return "; it is a TorchScript file (torch.jit.save)"
    return "; it is a pickle of torch.save, perhaps a state dict: name a builder that loads it"


def observed_modules(
    before: set[str], python_path: tuple[Path, ...], path_before: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Local modules loaded since ``sys.modules`` was `before`, sorted: later runs watch those not found statically.

    A module is listed by its dotted name if `ModuleSearch` finds its file by that name, otherwise (the builder changed
    ``sys.path``, or loaded a file under a name of its own) by its absolute path. pteforge's own are left out. The
    folders `python_path` precede `path_before`: ``sys.path`` before the builder changed it, by default as it is now.
    """
    finder = ModuleSearch(python_path, None if path_before is None else tuple(path_before))
    observed = set()
    for name, path in loaded_files(before):
        top = name.partition(".")[0]
        if top != PTEFORGE and finder.origin_of(path, top) is ModuleOrigin.LOCAL:
            located = finder.locate(name)
            observed.add(name if located and located.resolve() == path.resolve() else str(path))
    return tuple(sorted(observed))


def observed_distributions(before: set[str], python_path: tuple[Path, ...]) -> tuple[str, ...]:
    """Sorted top-level names of installed modules loaded since `before`, except those already loaded in part.

    They include the imports of a builder's imports. `source_fields` puts the versions of watched ones into the key.
    """
    finder = ModuleSearch(python_path)
    tops = {(name.partition(".")[0], path) for name, path in loaded_files(before)}
    loaded_before = {name.partition(".")[0] for name in before}
    installed = {top for top, path in tops if finder.origin_of(path, top) is ModuleOrigin.INSTALLED}
    return tuple(sorted(installed - loaded_before))


def loaded_files(before: Container[str]) -> Iterator[tuple[str, Path]]:
    """Names and files of the modules in ``sys.modules``, except those that were there `before`."""
    for name in set(sys.modules) - {"__main__", "__mp_main__"}:
        if name not in before and (file := module_file(name)):
            yield name, Path(file)


def source_fields(
    source: BuilderSource | ProgramSource,
    finder: ModuleSearch,
    watched: Iterable[str] = (),
    *,
    folder: Path | None = None,
    digest: Callable[[Path], Digest] = digest_file,
    seen: Mapping[str, Digest | None] = MappingProxyType({}),
) -> dict[str, JSON]:
    """The source's part of the key of `export`. It has no absolute path, so moving a folder changes nothing.

    For a builder: ``builder``, ``modules`` (name to AST digest: its own module, its local imports, the watched ones),
    ``distributions`` (to versions), ``kwargs``, ``files`` (to SHA-256; a folder stands for all files below it), and
    the `input_fields`. Modules of callables that `kwargs` name count as imports. For a program file: ``program``, its
    SHA-256. Earlier runs observed what is `watched`: modules that the static closure missed, and inputs.

    Paths of files are relative to `folder`, by default the current one. `digest` and `seen` are as for `input_fields`.
    Raises SourceError if a declared file cannot be read.
    """
    base, watched = folder or Path.cwd(), tuple(watched)
    if isinstance(source, ProgramSource):
        return {"program": _digest_of(base / source.program, "program file", digest)}
    inputs = [name for name in watched if is_input(name)]
    modules = [name for name in watched if not is_input(name)]
    paths = [Path(name) for name in modules if Path(name).is_absolute()]
    names = [name for name in modules if not Path(name).is_absolute()]
    named = [module for _, module in named_callables(source.kwargs)]
    closure = module_closure(source.builder.partition(":")[0], finder, [*names, *named])
    return {
        "builder": source.builder,
        "modules": {**closure.modules, **_watched_files(paths)},
        "distributions": distribution_versions(closure.distributions),
        "kwargs": source.kwargs,
        "files": _file_digests(source.files, base, digest),
        **input_fields(inputs, base, source.files, digest, seen),
    }


def named_callables(kwargs: Mapping[str, JSON]) -> Iterator[tuple[str, str]]:
    """The arguments that look like ``package.module:name``, each with its module, which need not exist."""
    for argument, value in kwargs.items():
        if isinstance(value, str) and not names_model(value) and (found := _REFERENCE.fullmatch(value)):
            yield argument, found[1]


_REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_][\w.]*")


def _watched_files(paths: Iterable[Path]) -> dict[str, Digest]:
    """Digests of files that no module name leads to, by file name; without those that are gone."""
    digests: dict[str, list[Digest]] = {}
    for path in filter(Path.is_file, paths):
        digests.setdefault(f"*/{path.name}", []).append(file_digest(path))
    return {name: digest_json(sorted(contents)) for name, contents in digests.items()}


def _file_digests(files: Iterable[Path], base: Path, digest: Callable[[Path], Digest]) -> dict[str, Digest]:
    digests: dict[str, Digest] = {}
    for path in [path for file in files for path in _members(base / file)]:
        name = path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name
        digests[numbered(name, digests)] = _digest_of(path, "file", digest)
    return digests


def _members(path: Path) -> list[Path]:
    """A file, or the files below a folder in order."""
    return sorted(member for member in path.rglob("*") if not member.is_dir()) if path.is_dir() else [path]


def _digest_of(path: Path, what: str, digest: Callable[[Path], Digest]) -> Digest:
    try:
        return digest(path)
    except FileNotFoundError as error:
        raise SourceError(f"there is no {what} {path}") from error
    except OSError as error:
        raise SourceError(f"{what} {path} cannot be read: {error.strerror or error}") from error


def declared_files(call: StageCall) -> tuple[Path, ...]:
    """Files that the keys of a stage have since the user's code is declared to read them."""
    if call.user_code is None:
        return ()
    sources = (call.user_code.source, *call.user_code.callables)
    return tuple(path for source in sources if isinstance(source, BuilderSource) for path in source.files)


def current_params(
    call: StageCall,
    watched: tuple[str, ...],
    digest: Callable[[Path], Digest] = digest_file,
    seen: Mapping[str, Digest | None] = MappingProxyType({}),
) -> Params:
    """Params of a stage that runs the user's code, with digests of that code as it is now; see `source_fields`."""
    assert call.user_code  # noqa: S101 - the caller has looked
    finder = ModuleSearch(call.python_path)
    source = source_fields(call.user_code.source, finder, watched, folder=call.folder, digest=digest, seen=seen)
    update: dict[str, Any] = {"source": source}
    if transforms := getattr(call.params, "transforms", ()):
        callables = iter(call.user_code.callables)
        update["transforms"] = tuple(
            CallableParams(source=source_fields(next(callables), finder, folder=call.folder, digest=digest))
            if isinstance(transform, CallableParams)
            else transform
            for transform in transforms
        )
    params: Params = call.params.model_copy(update=update)
    return params


def sources_of(params: Any) -> Iterator[Mapping[str, Any]]:
    """The key fields of all sources that a stage's params have: params, or JSON of them."""
    match params:
        case Params():
            yield from sources_of(params.model_dump())
        case {"builder": _, "modules": _}:
            yield params
        case Mapping():
            for value in params.values():
                yield from sources_of(value)
        case list() | tuple():
            for value in params:
                yield from sources_of(value)


def differing_sources(call: StageCall, digest: Callable[[Path], Digest]) -> tuple[set[str], set[str]]:
    """The user's modules and files that are not what a call's key says, by name; always those outside of the folder."""
    finder = ModuleSearch(call.python_path)
    modules: set[str] = set()
    files: set[str] = set()
    for source in sources_of(call.params):
        for name, recorded in source["modules"].items():
            if not name.startswith("*/"):
                module = finder.find(name)
                modules.update([name] if not (module and module.path) or read_module(module).digest != recorded else [])
        for name, recorded in {**source.get("files", {}), **source.get("read", {})}.items():
            try:
                files.update([name] if digest(call.folder / name) != recorded else [])
            except OSError:
                files.add(name)
    return modules, files


def known_modules(params: Any) -> set[str]:
    """Modules and distributions that the key has without watching."""
    sources = [params.source]
    sources += [each.source for each in getattr(params, "transforms", ()) if isinstance(each, CallableParams)]
    return {name for source in sources for part in ("modules", "distributions") for name in source.get(part, ())}


def says_as_much(now: Any, before: Any) -> bool:
    """Whether a source still is what it was; more of it may be watched by now, for a run of the same source.

    What it was seen to read is not compared: the key has that as it was when it was read.
    """
    grown = {
        name: {known: now.source.get(name, {}).get(known) for known in before.source[name]}
        for name in ("modules", "distributions")
        if name in before.source
    }
    source = {name: value for name, value in {**now.source, **grown}.items() if name not in _READ}
    source |= {name: before.source[name] for name in _READ if name in before.source}
    return bool(now.model_copy(update={"source": source}) == before)


_READ = ("read", "environment")  # fields of a source that `input_fields` makes
