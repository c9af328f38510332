"""The library's SHA-256."""

import hashlib
import random
import subprocess

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test builds


def test_digests(sanitized, tmp_path):
    """Digests of 0 to 300 bytes equal hashlib's, with portable code and with the processor's instructions."""
    content = random.Random(0).randbytes(300)  # noqa: S311  # the same bytes each time
    (tmp_path / "content").write_bytes(content)
    done = subprocess.run([sanitized / "hash_file", tmp_path / "content"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    digests = [hashlib.sha256(content[:size]).hexdigest() for size in range(len(content) + 1)]
    assert done.stdout.splitlines() == [f"{digest} {digest}" for digest in digests]
