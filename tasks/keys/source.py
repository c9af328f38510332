"""The key fields of a model's source: what its code, arguments and files are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ...artifacts.digest import Digest, digest_file, digest_json
from ...configs.sources import BuilderSource, ProgramSource
from ...errors import SourceError
from .code import file_digest, module_closure
from .key import JSON
from .search import ModuleSearch
from .versions import distribution_versions


def source_fields(
    source: BuilderSource | ProgramSource,
    search: ModuleSearch,
    watched: Iterable[str] = (),
    *,
    folder: Path | None = None,
    digest: Callable[[Path], Digest] = digest_file,
) -> dict[str, JSON]:
    """What enters the key of `export`. No absolute path does, so that moving a folder changes nothing.

    For a builder: ``builder``, ``modules`` (name to AST digest: its own module, its local imports, the watched ones),
    ``distributions`` (to versions), ``kwargs``, ``files`` (to SHA-256). For a program file: ``program``, its SHA-256.

    Args:
        source: from the zoo file.
        search: where the builder's modules are looked for.
        watched: what `observed_modules` told after earlier runs and the static closure had missed.
        folder: what relative paths of files are relative to; the current folder where left out.
        digest: SHA-256 of a file; give one that remembers where files are large.

    Raises:
        SourceError: a declared file cannot be read.
    """
    base = folder or Path.cwd()
    if isinstance(source, ProgramSource):
        return {"program": _digest_of(base / source.program, "program file", digest)}
    watched = tuple(watched)
    paths = [Path(name) for name in watched if Path(name).is_absolute()]
    names = [name for name in watched if not Path(name).is_absolute()]
    closure = module_closure(source.builder.partition(":")[0], search, names)
    return {
        "builder": source.builder,
        "modules": {**closure.modules, **_watched_files(paths)},
        "distributions": distribution_versions(closure.distributions),
        "kwargs": source.kwargs,
        "files": _file_digests(source.files, base, digest),
    }


def _watched_files(paths: Iterable[Path]) -> dict[str, Digest]:
    """Digests of files that no module name leads to, by file name; one that is gone leaves nothing."""
    digests: dict[str, list[Digest]] = {}
    for path in paths:
        if path.is_file():
            digests.setdefault(f"*/{path.name}", []).append(file_digest(path))
    return {name: digest_json(sorted(found)) for name, found in digests.items()}


def _file_digests(files: Iterable[Path], base: Path, digest: Callable[[Path], Digest]) -> dict[str, Digest]:
    digests: dict[str, Digest] = {}
    for file in files:
        path = base / file
        name = path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name
        # Two files of one name from different folders are told apart by their order.
        same = sum(known.partition("#")[0] == name for known in digests)
        digests[f"{name}#{same + 1}" if same else name] = _digest_of(path, "file", digest)
    return digests


def _digest_of(path: Path, what: str, digest: Callable[[Path], Digest]) -> Digest:
    try:
        return digest(path)
    except FileNotFoundError as error:
        raise SourceError(f"there is no {what} {path}") from error
    except OSError as error:
        raise SourceError(f"{what} {path} cannot be read: {error.strerror or error}") from error
