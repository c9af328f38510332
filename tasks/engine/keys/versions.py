"""Versions of installed distributions, and the instructions that this machine computes with."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PathDistribution
from pathlib import Path

from ....artifacts.digest import digest_bytes

_OFTEN_BUILT_LOCALLY = ("torch", "executorch")
"""Distributions that people build from source, so that two builds may have the same version."""


def distribution_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of the distributions that provide the top-level modules `names`, for example ``{"PyYAML": "6.0.3"}``.

    The version of torch and executorch is followed by a digest of the files that their wheel installed. A name may also
    be a distribution's own. Names that no installed distribution provides are left out. Versions are read once per
    process: the next process sees an upgrade.
    """
    return dict(map(_named_version, sorted({folder for name in names for folder in distributions_of(name)})))


def distributions_of(top: str) -> tuple[Path, ...]:
    """Metadata folders (``*.dist-info``) of the distributions that provide the top-level module `top`.

    ``importlib.metadata.packages_distributions`` knows the same, but takes a third of a second.
    """
    return _distributions_of(top, tuple(sys.path))


def host_capability() -> str:
    """The machine, and the vector instructions that torch chooses CPU kernels by, for example ``x86_64 avx512``.

    The same choice as in aten/src/ATen/native/DispatchStub.cpp, with the environment variable that overrides it.
    """
    chosen = os.environ.get("ATEN_CPU_CAPABILITY")
    return f"{platform.machine()} {chosen.lower() if chosen else _vector_instructions(_cpu_flags())}"


@cache
def _named_version(folder: Path) -> tuple[str, str]:
    distribution = PathDistribution(folder)
    name = distribution.metadata["Name"]
    build = f" ({_wheel_digest(folder)})" if name in _OFTEN_BUILT_LOCALLY else ""
    return name, distribution.version + build


@cache
def _distributions_of(top: str, path: tuple[str, ...]) -> tuple[Path, ...]:
    folders = _metadata_folders(path)
    namesakes = [folder for folder in folders if _normalised(folder.name.partition("-")[0]) == _normalised(top)]
    # Most distributions are named after their module. If its files confirm that, the others need not be read.
    providers = [folder for folder in namesakes if _provides(folder, top)]
    if not providers:
        providers = [folder for folder in folders if _provides(folder, top)]
    # The files of an editable install are not listed.
    return tuple(providers or namesakes)


@cache
def _metadata_folders(path: tuple[str, ...]) -> tuple[Path, ...]:
    folders: list[Path] = []
    for entry in dict.fromkeys(path):
        try:
            found = sorted(Path(entry).iterdir())
        except OSError:
            continue
        folders += [folder for folder in found if folder.suffix in {".dist-info", ".egg-info"}]
    return tuple(folders)


def _provides(folder: Path, top: str) -> bool:
    """Whether a distribution has files of the module: ``top/…``, ``top.py`` or ``top.….so``."""
    record, older = _listings(folder)
    name = b"\n" + top.encode()
    # The listings of all packages are megabytes: finding bytes takes a hundredth of the expression's time.
    if name in record:
        return re.search(re.escape(name) + rb"(?:/|(?:\.[^/,\s]*)?\.(?:py|so|pyd),)", record) is not None
    return top in older


@cache
def _listings(folder: Path) -> tuple[bytes, frozenset[str]]:
    """A distribution's file list, each line after a newline, or its older list of top-level names."""
    try:
        return b"\n" + (folder / "RECORD").read_bytes(), frozenset()
    except OSError:
        pass
    try:
        # Debian's packages have this one instead.
        return b"", frozenset((folder / "top_level.txt").read_text(encoding="utf-8").split())
    except OSError:
        return b"", frozenset()


@cache
def _wheel_digest(folder: Path) -> str:
    """Short digest of the files in a wheel, from their digests in RECORD; the same however it was installed."""
    lines = _listings(folder)[0].splitlines()
    # Leaves out the installer's own files: scripts with the environment's path, byte code, metadata.
    shipped = [
        line for line in lines if not line.startswith(b"..") and not line.endswith(b",,") and b".dist-info/" not in line
    ]
    return digest_bytes(b"\n".join(sorted(shipped)))[:16]


def _normalised(name: str) -> str:
    """https://packaging.python.org/specifications/name-normalization/."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    # "flags" on x86, "Features" on Arm.
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(flags, "").split())


def _vector_instructions(flags: frozenset[str]) -> str:
    for name, needed in (
        ("avx512", {"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"}),
        ("avx2", {"avx2", "fma"}),
        ("sve", {"sve"}),
    ):
        if needed <= flags:
            return name
    return "default"
