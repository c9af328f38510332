"""The lock files have one version of everything that is installed, and pyproject.toml allows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pteforge
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LINES, DEPLOYED = (
    [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for name in ("lock", "deploy")
    for file in [Path(pteforge.__file__).parent / "requirements" / f"{name}.txt"]
)


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> Iterator[Requirement]:
    """The requirements of an installed package with extras, and theirs in turn."""
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    for text in requires(name) or ():
        wanted = Requirement(text)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield wanted
            yield from needed(wanted.name, frozenset(wanted.extras), seen)


def test_lines_are_plain_versions():
    """Each line is a name and a public version: no index, no build for one kind of processor, no CUDA."""
    assert [line for line in LINES if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert [line for line in LINES if line.startswith("nvidia")] == []
    assert "torch==2.13.0" in LINES


def test_everything_is_locked():
    """Whatever ``.[test]`` installs is in the lock file, in a version that satisfies all that ask for it."""
    locked = {canonicalize_name(name): version for name, version in (line.split("==") for line in LINES)}
    asked = [wanted for wanted in needed("pteforge", frozenset({"test"}), set()) if wanted.name != "pteforge"]
    assert len(asked) > 200
    assert {wanted.name for wanted in asked if canonicalize_name(wanted.name) not in locked} == set()
    refused = [str(wanted) for wanted in asked if locked[canonicalize_name(wanted.name)] not in wanted.specifier]
    assert refused == []


def test_what_is_deployed():
    """The other lock file has the same versions, of what pteforge needs without extras, and of nothing else."""
    wanted = {canonicalize_name(wanted.name) for wanted in needed("pteforge", frozenset(), set())}
    assert {canonicalize_name(line.partition("==")[0]) for line in DEPLOYED} == wanted
    assert set(DEPLOYED) < set(LINES)
