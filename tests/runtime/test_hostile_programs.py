"""Fat programs, good and bad ones, under sanitizers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from pteforge.artifacts.nfat.fat_file import open_fat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds

_COUNT = 1000
"""Mutations of each container."""

Mutations = Callable[[bytes, int, int], list[bytes]]
Opened = Callable[[Sequence[bytes], Mapping[str, bytes]], list[str]]


def test_all_programs(sanitized: Path, programs: Path, tmp_path: Path) -> None:
    """No program, however bad, makes a sanitizer report anything or leaks memory in the C++ host."""
    (tmp_path / "input").write_bytes(os.urandom(4 * 64 * 4))
    codes = {}
    for program in sorted(programs.glob("*.pte")):
        command = [sanitized / "runtime" / "nfat_run", program, "forward", f"4x64:{tmp_path / 'input'}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
        assert "Sanitizer" not in done.stderr, f"{program.name}: {done.stderr}"
        assert "runtime error:" not in done.stderr, f"{program.name}: {done.stderr}"
        codes[program.stem] = done.returncode
    assert set(codes.values()) == {0, 1}
    assert (codes["v1"], codes["v2"], codes["v2-damaged-first"], codes["v2-none-fits"]) == (0, 0, 0, 1)


@pytest.mark.parametrize(("name", "first"), [("v1", "XnnpackBackend"), ("v2", "xnnpack")])
def test_mutations(programs: Path, mutations: Mutations, opened: Opened, name: str, first: str) -> None:
    """Of real containers that were tampered with, the backend runs a payload that is whole, or none."""
    content = (programs / f"{name}.pte").read_bytes()
    start = content.index(b"NFAT" + bytes([int(name[1]), 0, 0, 0]))
    fat = open_fat(programs / f"{name}.pte").container
    # Both end with what the package calls the inline section. What lies in payloads of version 1 nobody can vouch for.
    end = content.index(bytes(fat.inline), start) + len(fat.inline)
    described = end - start - len(fat.inline)
    blobs = {key: bytes(blob) for key, blob in fat.named_data.items()}
    found = opened(mutations(content[start:end], described, _COUNT), blobs)
    assert found[0].endswith(f" -> {first}")
    for line in found:
        verdicts, _, chosen = line.partition(" -> ")
        assert chosen == "" or f" {chosen} intact" in verdicts
    assert sum(" -> " in line for line in found) > _COUNT // 50
