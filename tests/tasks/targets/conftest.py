"""How targets delegate, and lowering with those that need a process of their own."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pteforge.formats.pte.reader import read_pte
from pteforge.tasks.targets import find_target


@pytest.fixture
def compile_specs() -> Callable[..., dict[str, bytes]]:
    """The compile specs with which a target's one partitioner delegates."""

    def made(name: str, **options: Any) -> dict[str, bytes]:
        (partitioner,) = find_target(name, options).partitioners()
        return {spec.key: spec.value for spec in partitioner.delegation_spec.compile_specs}

    return made


LOWER_APART = Path(__file__).parent / "bodies" / "lower_apart.py"


@pytest.fixture
def lower_apart(tmp_path: Path) -> Callable[..., dict[str, bytes]]:
    """Lowers networks of bodies/lower_apart.py, for targets that leave threads or temporary files to a process's end.

    Takes the target and, by name, the network with its options; gives each file, or the error as text in its place.
    """

    def lowered(target: str, **lowerings: tuple[str, dict[str, Any]]) -> dict[str, bytes]:
        arguments = [
            json.dumps({"file": name, "network": network, "options": options})
            for name, (network, options) in lowerings.items()
        ]
        command = [sys.executable, str(LOWER_APART), str(tmp_path), target, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return {path.stem: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in {".pte", ".error"}}

    return lowered


@pytest.fixture
def operators() -> Callable[[bytes], set[str]]:
    def names(content: bytes) -> set[str]:
        return {operator for method in read_pte(content).methods for operator in method.operators}

    return names
