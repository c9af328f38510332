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
LONG = [f"long[{number}]" for number in range(24)]
SHORT = ["short[0]", "short[1]"]
NIGHTLY = {*LONG, *SHORT, "g"}
DEALING = """
def pytest_collection_finish(session):
    conftest, = (plugin for plugin in session.config.pluginmanager.get_plugins() if hasattr(plugin, "PARTS"))
    for number, tests in conftest.parts(session.items).items():
        print(f"::test_{number:02}", *(test.name.removeprefix("test_") for test in tests))
"""
"""A plugin of pytest's that prints what each part has."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with long and with short nightly tests, and one with a quick, a slow, and a slow and nightly test."""
    folder = tmp_path_factory.mktemp("suite")
    shutil.copy(TESTS / "conftest.py", folder)
    shutil.copy(TESTS.parent / "pyproject.toml", folder)
    for name, count, limit in [("long", len(LONG), 900), ("short", len(SHORT), 100)]:
        marks = f"import pytest\n\npytestmark = [pytest.mark.nightly, pytest.mark.timeout({limit})]\n"
        cases = f"@pytest.mark.parametrize('case', range({count}))"
        (folder / f"test_{name}.py").write_text(f"{marks}\n{cases}\ndef test_{name}(case): pass\n")
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
        (["--nightly"], NIGHTLY),
        (["--slow", "--nightly"], {*NIGHTLY, "slow"}),
        (["--all"], {*NIGHTLY, "slow", "quick"}),
        (["--coverage"], {*NIGHTLY, "slow", "quick"}),
    ],
)
def test_selections(suite, options, expected):
    """Each option selects what the script's first lines say; without one, neither slow nor nightly tests run."""
    assert selected(suite, *options) == expected


def test_parts(suite, monkeypatch):
    """Every nightly test is in exactly one part; a file that is more than a part is dealt by tests."""
    (suite / "dealing.py").write_text(DEALING)
    monkeypatch.setenv("PYTHONPATH", str(suite))
    with_parts = selected(suite, "--nightly", "-p", "dealing")
    nightly = [set(line.split()[1:]) for line in sorted(with_parts - NIGHTLY)]
    assert len(nightly) == 24
    assert sorted(name for part in nightly for name in part) == sorted(NIGHTLY)
    assert [len(part & {*LONG}) for part in nightly] == [1] * 24
    assert sorted(sorted(part - {*LONG}) for part in nightly) == [[]] * 22 + [["g"], SHORT]
    assert selected(suite, given="--all --part 3") == {*nightly[2], "slow", "quick"}
