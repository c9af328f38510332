"""Records what the user's code reads besides its modules, and digests it for the keys of its stages.

Names of inputs, also in watch lists, are ``file:PATH``, ``folder:PATH`` for the names of a folder's files,
``tree:PATH`` for those of its folders as well, and ``env:NAME``. Paths below the zoo's folder are relative to it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakSet

from ....artifacts.digest import Digest, digest_bytes, digest_file, digest_json
from ....artifacts.records import Record
from .code import JSON
from .search import SITE_FOLDERS, ModuleOrigin, ModuleSearch

ALL_VARIABLES = "os.environ"  # stands for all environment variables in `Observed.unwatched`

WORKER_VARIABLES: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
"""The environment variables that every worker process has, whatever they are elsewhere. No key has them."""


@dataclass(frozen=True, slots=True)
class Observed(Record):
    """What the user's code has loaded and read."""

    modules: tuple[str, ...]  # local modules by name or path, and distributions
    inputs: Mapping[str, Digest | None]  # by name, the digest of what was read; None where there was nothing
    unwatched: tuple[str, ...]  # absolute paths of files that are read and not watched, and maybe `ALL_VARIABLES`


def is_input(watched: str) -> bool:
    """Whether this name on a watch list is that of an input; otherwise it is a module or a distribution."""
    return watched.startswith(("file:", "folder:", "tree:", "env:"))


def input_fields(
    names: Iterable[str],
    folder: Path,
    declared: Iterable[Path],
    digest: Callable[[Path], Digest],
    seen: Mapping[str, Digest | None],
) -> dict[str, JSON]:
    """Key fields of inputs: ``read`` (path to digest) and ``environment`` (variable to digest of its value).

    Leaves out missing inputs, and files that are `declared`, relative to the zoo's `folder`: the key has them under
    ``files``. Files that are not below `folder` go by their names. `digest` returns the digest of a file as it is now,
    which `seen` replaces for inputs with their digests when they were read.
    """
    fields: dict[str, dict[str, JSON]] = {"read": {}, "environment": {}}
    declared_paths = {folder / path for path in declared}
    for name in sorted(names):
        kind, _, which = name.partition(":")
        content = seen[name] if name in seen else _digest(kind, which, folder, digest)
        if content is None or folder / which in declared_paths:
            continue
        part = fields["environment" if kind == "env" else "read"]
        title = Path(which).name if kind != "env" and Path(which).is_absolute() else which
        title += "" if kind in ("file", "env") else "/"
        part[numbered(title, part)] = content
    return {name: part for name, part in fields.items() if part}


def numbered(name: str, taken: Iterable[str]) -> str:
    """The name, with a number if there is another input of this name already."""
    same = sum(other.partition("#")[0] == name for other in taken)
    return f"{name}#{same + 1}" if same else name


def _digest(kind: str, which: str, folder: Path, digest: Callable[[Path], Digest]) -> Digest | None:
    """Digest of an input as it is now; None where there is none, or it cannot be read: the user's code will say so."""
    if kind == "env":
        return None if (value := os.environ.get(which)) is None else _digest_value(which, value)
    try:
        return digest(folder / which) if kind == "file" else _digest_names(folder / which, folders=kind == "tree")
    except (OSError, ValueError):
        return None


@cache
def _digest_value(variable: str, value: str) -> Digest:
    """Digests a variable, which may be a secret: records hold nothing else of it, and guessing from it is slow."""
    return digest_bytes(hashlib.scrypt(os.fsencode(value), salt=os.fsencode(variable), n=2**13, r=8, p=1))


def _digest_names(folder: Path, *, folders: bool) -> Digest:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if folders or not entry.is_dir()]
    return digest_json(sorted(repr(name) for name in names if not name.startswith((".", "__pycache__"))))


class Recorder:
    """Records what the user's code reads in this process, in Python; `observed` returns it.

    Inputs are files and listed folders below the zoo's folder or its Python path, or named by an argument; and
    environment variables that the user's code looks up, rather than an installed package. A file that the code writes
    is no input, unless the code has looked for it before, as it does for one that it keeps for later runs. Modules are
    no inputs: keys have them by other means.
    """

    def __init__(
        self,
        folder: Path,
        python_path: Iterable[Path],
        arguments: Any,
        ignored: Iterable[Path],
        declared: Iterable[Path] = (),
    ) -> None:
        """Records nothing yet: see `recording`. `folder` and `python_path` are the zoo's.

        Text in `arguments`, JSON, may be paths relative to `folder`; so are files that are `declared`, which the key
        has anyway. What is `ignored` is not the user's, wherever it is.
        """
        self._folder = folder
        self._roots = _prefixes(path for root in (folder, *python_path) for path in (root, root.resolve()))
        self._named = sorted(_named_paths(folder, arguments))
        self._ignored = _prefixes([*ignored, *(folder / path for path in declared)])
        pythons = _prefixes(map(Path, {sys.prefix, sys.base_prefix, sys.exec_prefix}))
        self._pythons = tuple(prefix for prefix in pythons if not any(root.startswith(prefix) for root in self._roots))
        self._not_reported = (*pythons, *_prefixes([_PACKAGE]), *_system_folders())
        self._finder = ModuleSearch(tuple(python_path))
        self._origins: dict[str, ModuleOrigin] = {}  # by file name of code
        self._finding = threading.local()  # `origin`: whether this thread is looking for an origin
        self._files: dict[str, _Seen | None] = {}  # by path, as they were when they were first read
        self._folders: set[str] = set()
        self._variables: dict[str, Digest | None] = {}
        self._written: set[str] = set()  # paths
        self._assigned: set[str] = set()  # variables
        self._outside: set[str] = set()
        self._iteration: tuple[int, int] | None = None  # frame and instruction of the user's that goes through all
        self._before = {path: seen for path in self._named if (seen := _see(path))}
        self._mapped_before = _mapped_files()
        self._start = time.time_ns() - _CLOCK

    def opened(self, path: Any, flags: int = os.O_RDONLY) -> None:
        """A file is opened, or would be if it existed."""
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor
        name = _absolute(path)
        if flags & (os.O_WRONLY | os.O_TRUNC | os.O_EXCL):
            if name in self._files:
                del self._files[name]  # it is one again if it is read from here on
            else:
                self._written.add(name)
        elif name not in self._written and not self._files.get(name):
            if self._counts(name):
                self._note(name)
            elif self._is_unwatched(name):
                self._outside.add(name)

    def looked_at(self, path: Any) -> None:
        """Code asks whether a file exists: the user's code may depend on it, and native code may open it."""
        if isinstance(path, str | bytes | os.PathLike):
            name = _absolute(path)
            if name in self._files or name in self._written or not self._counts(name):
                return
            if _see(name) or self._users_frame():
                self._note(name)

    def listed(self, path: Any) -> None:
        if not isinstance(path, int):
            name = _absolute("." if path is None else path)
            if self._counts(name) and self._users_frame():
                self._folders.add(name)

    def looked_up(self, variable: Any, value: str | None) -> None:
        if not isinstance(variable, str) or variable in (*self._variables, *self._assigned, *WORKER_VARIABLES):
            return
        frame = self._users_frame()
        if frame and self._iteration != (id(frame), frame.f_lasti):
            self._variables[variable] = None if value is None else _digest_value(variable, value)

    def assigned(self, variable: Any) -> None:
        """The value of an environment variable is the code's own from now on."""
        if isinstance(variable, str):
            self._assigned.add(variable)

    def all_looked_up(self) -> None:
        """Code iterates over all environment variables, often to copy them: that makes none of them an input."""
        if frame := self._users_frame():
            self._iteration = id(frame), frame.f_lasti
            self._outside.add(ALL_VARIABLES)

    def observed(self, modules: Iterable[str], module_files: Container[str]) -> Observed:
        """Returns what was loaded and read so far; `module_files` are paths of modules, which are no inputs.

        Includes files that native code may have read: mapped ones, and unwritten ones that an argument names.
        """
        mapped = {path: _see(path) for path in _mapped_files() - self._mapped_before}
        for path, seen in (*mapped.items(), *self._before.items()):
            if seen and _see(path) == seen:
                self.opened(path)
        inputs: dict[str, Digest | None] = {
            self._name("file", path): _digest_as_read(path, seen)
            for path, seen in self._files.items()
            if path not in module_files
        }
        gone_through = {str(Path(path).parent) for path in self._folders}
        for path in self._folders:
            kind = "tree" if path in gone_through else "folder"
            name = self._name(kind, path)
            inputs[name] = _digest(kind, name.partition(":")[2], self._folder, digest_file)
        inputs |= {f"env:{name}": value for name, value in self._variables.items()}
        nameless = {name for name in inputs if not _is_text(name)}  # records cannot hold them
        unwatched = {*self._outside, *(name.partition(":")[2] for name in nameless)}
        return Observed(
            tuple(modules),
            {name: inputs[name] for name in sorted(inputs.keys() - nameless)},
            tuple(sorted(name.encode(errors="backslashreplace").decode() for name in unwatched)),
        )

    def _note(self, path: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            if not stat.S_ISREG(_stat(path).st_mode):
                return
        self._files[path] = _see(path)

    def _name(self, kind: str, path: str) -> str:
        if not f"{path}{os.sep}".startswith(self._roots):
            return f"{kind}:{path}"
        real = self._folder.resolve()
        return f"{kind}:{os.path.relpath(path, real if Path(path).is_relative_to(real) else self._folder)}"

    def _counts(self, path: str) -> bool:
        """Whether a file, or a folder that is listed, would be an input."""
        folder = f"{path}{os.sep}"
        if "__pycache__" in path or folder.startswith(self._ignored):
            return False
        root = next((root for root in self._roots if folder.startswith(root)), "")
        if not root and not any(path == named or path.startswith(f"{named}{os.sep}") for named in self._named):
            return False
        return not folder.startswith(self._pythons) and SITE_FOLDERS.isdisjoint(Path(path[len(root) :]).parts)

    def _is_unwatched(self, path: str) -> bool:
        """Whether a file elsewhere is to be reported: it was there before, and is read for the user's code."""
        others = (*self._roots, *self._ignored, *self._not_reported)
        if f"{path}{os.sep}".startswith(others) or path.endswith((".py", ".pyc", ".so")):
            return False
        if not SITE_FOLDERS.isdisjoint(Path(path).parts):
            return False
        with suppress(OSError):
            status = _stat(path)
            there = max(status.st_mtime_ns, status.st_ctime_ns) < self._start
            return stat.S_ISREG(status.st_mode) and there and self._users_frame(anywhere=True) is not None
        return False

    def _users_frame(self, *, anywhere: bool = False) -> FrameType | None:
        """The frame of the user's code that caused this call; by default with only the standard library between."""
        if getattr(self._finding, "origin", False):
            return None
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the public way takes ten times as long
        while frame:
            origin = self._origin(frame)
            if origin is ModuleOrigin.LOCAL:
                return frame
            if not anywhere and (origin is ModuleOrigin.INSTALLED or frame.f_code.co_filename == _IMPORT_SYSTEM):
                return None
            frame = frame.f_back
        return None

    def _origin(self, frame: FrameType) -> ModuleOrigin:
        """Whose code a frame runs; this module's counts as the standard library's, the rest of ours as installed."""
        name = frame.f_code.co_filename
        if name not in self._origins:
            top = str(frame.f_globals.get("__name__")).partition(".")[0]
            ours = name.startswith(f"{_PACKAGE}{os.sep}") and not name.startswith(self._roots)
            if name == __file__ or name.startswith("<"):
                self._origins[name] = ModuleOrigin.STDLIB
            else:
                self._finding.origin = True  # reads lists of installed files, which the user's code did not ask for
                try:
                    self._origins[name] = ModuleOrigin.INSTALLED if ours else self._finder.origin_of(Path(name), top)
                finally:
                    self._finding.origin = False
        return self._origins[name]


_PACKAGE = Path(__file__).parents[3]
_IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"
_CLOCK = 20 * 10**6  # ns by which a file system's clock may be behind

_Seen = tuple[int, int, int, int]  # inode, size, and times of the last changes of a file's content and of its inode


def _see(path: str) -> _Seen | None:
    """What decides whether a file is the same one later; None where there is no file."""
    try:
        status = _stat(path)
    except OSError:
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _digest_as_read(path: str, seen: _Seen | None) -> Digest | None:
    """Digest of a file as it was when it was first read; one that no file has if it has changed since."""
    if seen is None:
        return None
    with suppress(OSError):
        digest = digest_file(Path(path))
        if _see(path) == seen:
            return digest
    return digest_json(["changed while it was read", *seen])


def _mapped_files() -> set[str]:
    """Paths of the files that are mapped into this process; none where the system does not say."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123 - a path of the kernel
        return {fields[5].rstrip("\n") for line in lines if len(fields := line.split(maxsplit=5)) > 5}
    return set()


def _named_paths(folder: Path, arguments: Any) -> Iterator[str]:
    """Absolute paths that text in arguments may stand for."""
    match arguments:
        case str() if arguments and "\0" not in arguments:
            with suppress(RuntimeError):  # `~somebody` is nobody's home
                yield _absolute(folder / Path(arguments).expanduser())
        case Mapping():
            for value in arguments.values():
                yield from _named_paths(folder, value)
        case list() | tuple():
            for value in arguments:
                yield from _named_paths(folder, value)


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - without following links


def _prefixes(paths: Iterable[Path]) -> tuple[str, ...]:
    """What the paths of everything in these folders start with."""
    return tuple(dict.fromkeys(f"{str(path).rstrip(os.sep)}{os.sep}" for path in paths))


def _system_folders() -> tuple[str, ...]:
    """Prefixes of files that belong to the machine, and of torch's caches, whose files are named by their content."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    torch = os.environ.get("TORCH_HOME") or f"{caches}/torch"
    system = ("proc", "sys", "dev", "etc", "usr", "lib", "lib64", "bin", "sbin", "run")
    return (f"{torch}/", f"{tempfile.gettempdir()}/torchinductor_", *(f"/{name}/" for name in system))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Records what is read while the context lasts.

    Nested recorders record nothing. Threads that ran before are ignored: they renew leases and copy objects, maybe in
    the zoo's folder. A thread that started during an earlier recording is the user's, and counts. The audit hook stays
    in the process, which should end soon: hooks cannot be removed.
    """
    _install_hook()
    before = set(threading.enumerate())
    others = before - {threading.current_thread()} - set(_users_threads)
    _active.append((recorder, {thread.ident: thread for thread in others}))
    os.environ.__class__ = os.environb.__class__ = _HeardEnviron
    os.stat = _heard_stat
    try:
        yield
    finally:
        os.stat = _stat
        os.environ.__class__ = os.environb.__class__ = _Environ
        _active.pop()
        _users_threads.update(set(threading.enumerate()) - before)


_active: list[tuple[Recorder, dict[int | None, threading.Thread]]] = []  # with the threads that it ignores
_users_threads: WeakSet[threading.Thread] = WeakSet()  # which started during a recording


def _listener() -> Recorder | None:
    """The recorder of what this thread does, if there is one."""
    for recorder, others in _active[:1]:
        other = others.get(threading.get_ident())  # threads may take the numbers of those that have ended
        return None if other and other.is_alive() else recorder
    return None


@cache
def _install_hook() -> None:
    sys.addaudithook(_hear)
    for supporting in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if _stat in supporting:
            supporting.add(_heard_stat)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook; called very often, for events of all kinds."""
    if event in _EVENTS and (recorder := _listener()):
        with suppress(OSError, ValueError):  # of the path that is opened; the caller gets the error from its own call
            if event == "open":
                recorder.opened(arguments[0], arguments[2])
            else:
                recorder.listed(arguments[0])


_EVENTS = frozenset({"open", "os.listdir", "os.scandir"})

_stat = os.stat
_Environ: Any = type(os.environ)


@wraps(_stat)
def _heard_stat(path: Any, **options: Any) -> os.stat_result:
    if recorder := _listener():
        with suppress(OSError, ValueError):
            recorder.looked_at(path)
    return _stat(path, **options)


class _HeardEnviron(_Environ):  # type: ignore[misc]  # the class has no public name
    """The class of `os.environ` while it is heard: whoever holds the object is heard, too."""

    def __getitem__(self, key: Any) -> Any:
        if recorder := _listener():
            recorder.looked_up(_text(key), _text(self._data.get(self._key(key))))
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if recorder := _listener():
            recorder.assigned(_text(key))
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        if recorder := _listener():
            recorder.assigned(_text(key))
        super().__delitem__(key)

    def __iter__(self) -> Iterator[Any]:
        if recorder := _listener():
            recorder.all_looked_up()
        variables: Iterator[Any] = super().__iter__()
        return variables

    @staticmethod
    def _key(key: Any) -> Any:
        return os.fsencode(key) if isinstance(key, str) else key


def _text(value: Any) -> Any:
    return os.fsdecode(value) if isinstance(value, bytes) else value
