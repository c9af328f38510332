"""Which tests `scripts/test` runs, on a small suite that uses this one's conftest and settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
SCRIPT = TESTS.parent / "scripts" / "test"
NIGHTLY = {**dict.fromkeys("abcdefhklmn", 900), "i": 100, "j": 100}
"""Files with one nightly test each: their time limits in seconds."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with a nightly test each, and one with a quick test, a slow test and one that is both slow and nightly."""
    folder = tmp_path_factory.mktemp("suite")
    shutil.copy(TESTS / "conftest.py", folder)
    shutil.copy(TESTS.parent / "pyproject.toml", folder)
    for name, limit in NIGHTLY.items():
        marks = f"import pytest\n\npytestmark = [pytest.mark.nightly, pytest.mark.timeout({limit})]\n"
        (folder / f"test_{name}.py").write_text(f"{marks}\ndef test_{name}(): pass\n")
    mixed = ["import pytest", "def test_quick(): pass", "@pytest.mark.slow\ndef test_slow(): pass"]
    mixed += ["@pytest.mark.slow\n@pytest.mark.nightly\n@pytest.mark.timeout(100)\ndef test_g(): pass"]
    (folder / "test_mixed.py").write_text("\n\n".join(mixed))
    return folder


def selected(suite: Path, *options: str | Path, given: str = "") -> set[str]:
    """The names of the tests that `scripts/test` selects with options and `TEST_OPTIONS`, without ``test_``."""
    environment = os.environ | {"VENV": sys.prefix, "COVERAGE_FILE": str(suite / ".coverage"), "TEST_OPTIONS": given}
    environment.pop("PYTEST_ADDOPTS", None)
    arguments = [
        *options,
        "-c",
        suite / "pyproject.toml",
        f"--rootdir={suite}",
        "--collect-only",
        "-q",
        "-n",
        "0",
        suite,
    ]
    done = subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == "" or "--coverage" in options, done.stderr
    return {line.partition("::test_")[2] for line in done.stdout.splitlines() if "::test_" in line}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"quick"}),
        (["--slow"], {"slow"}),
        (["--nightly"], {*NIGHTLY, "g"}),
        (["--slow", "--nightly"], {*NIGHTLY, "g", "slow"}),
        (["--all"], {*NIGHTLY, "g", "slow", "quick"}),
        (["--coverage"], {*NIGHTLY, "g", "slow", "quick"}),
    ],
)
def test_selections(suite, options, expected):
    """Each option selects what the script's first lines say; without one, neither slow nor nightly tests run."""
    assert selected(suite, *options) == expected


def test_parts(suite):
    """Twelve parts have every nightly test, each once, and about the same time limits; other tests run in each."""
    parts = [selected(suite, "--slow", "--nightly", "--part", str(number)) for number in range(1, 13)]
    assert [part & {"slow", "quick"} for part in parts] == [{"slow"}] * 12
    nightly = sorted(sorted(part - {"slow"}) for part in parts)
    assert nightly == [["g", "i", "j"] if name == "g" else [name] for name in "abcdefghklmn"]
    assert selected(suite, given="--all --part 3") == {*parts[2], "quick"}
