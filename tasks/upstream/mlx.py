"""MLX's compiler of executorch 1.5.1: two defects worked around, and the modules that the wheel lacks.

Part of the keys of MLX's stages. Imports neither torch nor ExecuTorch, so that targets can be listed without them.

`executorch.backends.mlx.serialization` needs modules that are generated from its schema when ExecuTorch is built. The
wheel has the generator, the schema and flatc, so the modules are generated into a folder of the cache, and the package
is imported from there. Delete once the wheel has the modules; `make_importable` does nothing then.
"""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, wraps
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec, spec_from_file_location
from os import geteuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...artifacts.digest import digest_file, digest_json
from ...artifacts.files import abandoned, remove, staging_folder
from ...artifacts.store import cache_folder
from ...errors import TargetError
from .patches import mends

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner

_PACKAGE = "executorch.backends.mlx.serialization"
_GENERATOR = "generate.py"
# the first and the last module that the generator writes, and the last that flatc does
_MODULES = ("mlx_graph_schema.py", "_generated_serializers.py", "_generated/mlx_delegate/MLXGraph.py")
_TEMPLATES = ("MLXLoader.h.tmpl", "MLXLoader.cpp.tmpl")  # the generator's inputs for C++, which the wheel lacks too
_DIGESTS = "digests.json"
_SECONDS = 120
_ATTEMPTS = 4  # one is enough alone, two next to other processes that do the same; more mean a broken disk


def missing() -> str | None:
    """The reason why the installed ExecuTorch cannot lower for MLX; None if it can. Imports nothing."""
    wheel = _wheel()
    if wheel is None:
        return "ExecuTorch is not installed: pip install executorch==1.5.1"
    package = _package(wheel)
    if (package / _MODULES[0]).is_file() or ((package / _GENERATOR).is_file() and _flatc(wheel).is_file()):
        return None
    return f"the installed ExecuTorch has no MLX compiler ({package}); pip install executorch==1.5.1"


def make_importable() -> None:
    """Makes `executorch.backends.mlx` importable here, before its import; safe in parallel. Raises TargetError."""
    if _PACKAGE in sys.modules:
        return
    wheel = _wheel()
    if wheel is None or missing():
        raise TargetError(f"target 'mlx' is not available here: {missing()}")
    if (_package(wheel) / _MODULES[0]).is_file():
        return  # this wheel has them
    try:
        folder = generated_package(wheel, cache_folder() / "generated")
    except OSError as error:
        raise TargetError(
            f"the modules that MLX needs cannot be made in {cache_folder()}: {error}; "
            "set PTEFORGE_CACHE to a folder that can be written"
        ) from error
    sys.meta_path.insert(0, _FromFolder(folder))


def mlx_partitioner() -> Partitioner:
    """A partitioner for the edge stage, whose payloads do not depend on where the model's source is."""
    make_importable()
    from .compat import MLXPartitioner  # noqa: PLC0415 - torch

    _drop_stack_traces()
    partitioner = MLXPartitioner()
    # It searches the call stack for `to_edge_transform_and_lower`, which decomposes no more than the partitioner allows
    # (backends/mlx/partitioner.py). Our edge stage does the same. Delete once there is an argument for it.
    partitioner._is_to_edge_transform_and_lower = lambda: True  # noqa: SLF001 - the only way to override it
    return partitioner


@mends("MLX's payloads hold paths of this machine", "MLXBackend.preprocess")
@cache
def _drop_stack_traces() -> None:
    """Removes stack traces from programs before they are compiled, for the rest of the process.

    Upstream names constants by a digest of the program's text, which includes paths and lines of the model's source
    (backends/mlx/preprocess.py). They mean nothing to a device, and stage keys leave them out. The program
    is preprocess's own copy. Delete once the digest leaves stack traces out.
    """
    from .compat import MLXBackend  # noqa: PLC0415 - torch

    preprocess = MLXBackend.preprocess

    @wraps(preprocess)
    def call(edge_program: Any, compile_specs: Any) -> Any:
        for module in edge_program.graph_module.modules():
            for node in module.graph.nodes if hasattr(module, "graph") else ():
                node.meta.pop("stack_trace", None)
        return preprocess(edge_program, compile_specs)

    MLXBackend.preprocess = staticmethod(call)


@dataclass
class _FromFolder:
    """An `importlib.abc.MetaPathFinder` for just this package, in a folder."""

    folder: Path

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        init, locations = self.folder / "__init__.py", [str(self.folder)]
        is_package = fullname == _PACKAGE
        return spec_from_file_location(fullname, init, submodule_search_locations=locations) if is_package else None


def generated_package(wheel: Path, cache: Path) -> Path:
    """The folder of the complete package for the `wheel`, generated in the `cache` if it is missing or damaged.

    Raises OSError if it cannot be written, TargetError if others could have written it or the generator failed.
    """
    sources = [*sorted(path for path in _package(wheel).iterdir() if path.is_file()), _flatc(wheel)]
    digest = digest_json([[path.name, digest_file(path)] for path in sources])
    folder = cache / f"mlx-{version('executorch')}-{digest[:16]}"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_trust(cache)
    if _is_sound(folder):
        return folder
    staging = cache / "tmp"
    for leftover in abandoned(staging):
        remove(leftover)
    with staging_folder(staging) as scratch:
        package = _generate(wheel, scratch)
        for attempt in range(_ATTEMPTS):
            if _is_sound(folder):  # another process was faster
                break
            if folder.exists():  # damaged; whoever comes first moves it away
                _rename(folder, scratch / f"damaged-{attempt}")
            _rename(package, folder)
        else:
            raise OSError(f"{folder} is damaged again and again")
    return folder


def _wheel() -> Path | None:
    spec = find_spec("executorch")
    locations = (spec and spec.submodule_search_locations) or ()
    return next(map(Path, locations), None)


def _package(wheel: Path) -> Path:
    return wheel / "backends" / "mlx" / "serialization"


def _flatc(wheel: Path) -> Path:
    return wheel / "data" / "bin" / "flatc"


def _check_trust(folder: Path) -> None:
    """Raises TargetError if others could have put code into the folder: it would run as this user."""
    status = folder.stat()
    if status.st_uid != geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise TargetError(
            f"{folder} belongs to another user or can be written by others, and Python modules are imported from it; "
            "delete it, or set PTEFORGE_CACHE to a folder of your own"
        )


def _is_sound(folder: Path) -> bool:
    try:
        digests = json.loads((folder / _DIGESTS).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return bool(digests == _digests(folder))


def _digests(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): digest_file(path) for path in sorted(folder.rglob("*.py"))}


def _rename(source: Path, destination: Path) -> None:
    """Renames unless another process was faster: then the source is gone, or the destination exists."""
    try:
        with suppress(FileNotFoundError):
            source.rename(destination)
    except OSError:
        if not destination.exists():
            raise


def _generate(wheel: Path, scratch: Path) -> Path:
    """Runs the wheel's generator on a copy of the package, since it writes into its own folder."""
    package = scratch / "mlx" / "serialization"
    package.parent.mkdir(mode=0o700)
    shutil.copytree(_package(wheel), package, ignore=shutil.ignore_patterns("__pycache__"))
    for template in _TEMPLATES:
        (package / template).touch()
    command = [sys.executable, "-I", str(package / _GENERATOR), "--flatc", str(_flatc(wheel))]
    process = subprocess.run(  # noqa: S603 - the wheel's own program
        command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
    )
    if process.returncode or not all((package / module).is_file() for module in _MODULES):
        raise TargetError(
            f"the generator of the MLX compiler's modules failed ({_package(wheel) / _GENERATOR}, "
            f"exit code {process.returncode}); reinstall executorch==1.5.1. It wrote:\n"
            f"{(process.stdout + process.stderr)[-2000:]}"
        )
    (package / _DIGESTS).write_text(json.dumps(_digests(package)), encoding="utf-8")
    return package
