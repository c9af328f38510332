"""The library's SHA-256."""

from __future__ import annotations

import hashlib
import random
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds


def test_digests(sanitized: Path, tmp_path: Path) -> None:
    """Digests of 0 to 300 bytes equal hashlib's, by portable code and by the processor's instructions."""
    content = random.Random(0).randbytes(300)  # noqa: S311  # the same bytes each time
    (tmp_path / "content").write_bytes(content)
    done = subprocess.run([sanitized / "hash_file", tmp_path / "content"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    digests = [hashlib.sha256(content[:size]).hexdigest() for size in range(len(content) + 1)]
    assert done.stdout.splitlines() == [f"{digest} {digest}" for digest in digests]


def test_vectors(sanitized: Path, tmp_path: Path) -> None:
    """The digest of `abc` and of nothing are those that FIPS 180-4 gives."""
    (tmp_path / "content").write_bytes(b"abc")
    done = subprocess.run([sanitized / "hash_file", tmp_path / "content"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].split()[0] == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert lines[3].split()[0] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
