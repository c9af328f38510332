"""Whose memory payloads write their outputs to."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from pteforge.artifacts.nfat.fat_file import open_fat
from pteforge.artifacts.pte.reader import read_pte

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds


def _call(sanitized: Path, program: Path, folder: Path) -> list[str]:
    """What native/call_method says of the program's container."""
    content = program.read_bytes()
    fat = open_fat(program)
    delegate = next(each for method in read_pte(content).methods for each in method.delegates)
    (folder / "container").write_bytes(content[delegate.offset : delegate.offset + delegate.size])
    (folder / "blobs").write_bytes(
        b"".join(
            struct.pack("<Q", len(blob)) + key.encode() + bytes(blob) for key, blob in fat.container.named_data.items()
        )
    )
    command = [sanitized / "call_method", folder / "container", folder / "blobs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_unplanned_outputs_are_written_in_place(sanitized: Path, programs: Path, tmp_path: Path) -> None:
    """Outputs that a payload has no memory for are written where they belong, others copied; the numbers are equal."""
    unplanned = _call(sanitized, programs / "v2.pte", tmp_path)
    planned = _call(sanitized, programs / "v2-planned.pte", tmp_path)
    assert (unplanned[0], planned[0]) == ("in place", "copied")
    assert unplanned[1:] == planned[1:]
    assert len(set(unplanned[1:])) == 8
