"""A target of a package that is none of ours: installed, found by its entry point, and used by the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pteforge.artifacts.nfat.fat_file import open_fat

ACME = Path(__file__).parent / "packages" / "acme"
MODEL = {"linear": "nets:linear"}


def recipe(**options):
    """A recipe for devices with Acme's NPU and for those without."""
    specializations = [{"target": "acme", "options": options}, {"target": "portable"}]
    return {"acme": {"specializations": specializations, "output": {"form": "fat"}}}


@pytest.fixture
def installed(room):
    """The room, with Acme's package installed for its commands: as pip does it, metadata beside the modules."""
    shutil.copytree(ACME, room.folder / "site", ignore=shutil.ignore_patterns("__pycache__"))
    return room


@pytest.fixture
def environment(installed):
    """What commands need."""
    return {"PYTHONPATH": str(installed.folder / "site"), "ACME_LICENSE": "1"}


@pytest.mark.slow
def test_exports(installed, environment):
    """It lowers as our own do. Its output is never the same, and made once: nothing runs again until it must."""
    installed.zoo(MODEL, ("acme",), recipe(clock_rate=123))
    assert (done := installed.export(env=environment)).code == 0, done.err
    files = installed.files()
    (name,) = (name for name in files if name.endswith(".pte"))
    payloads = open_fat(installed.out / name).container.payloads
    assert [payload.description.backends for payload in payloads] == [("AcmeBackend",), ()]
    assert b"ACME123" in files[name]

    assert (again := installed.export(env=environment)).code == 0, again.err
    assert installed.files() == files

    installed.edit("zoo.yaml", "123", "456")
    assert (other := installed.export(env=environment)).code == 0, other.err
    assert b"ACME456" in b"".join(installed.files().values())

    installed.edit("site/acme_pteforge/backend.py", 'b"ACME"', 'b"ACME-2-"')
    assert (changed := installed.export(env=environment)).code == 0, changed.err
    assert b"ACME-2-456" in b"".join(installed.files().values())


def test_not_available(installed, environment):
    """Where it cannot lower, the error names recipe, target and what to do; nothing is started."""
    installed.zoo(MODEL, ("acme",), recipe())
    del environment["ACME_LICENSE"]
    done = installed.export(env=environment)
    assert done.code == 2
    assert "recipes.acme" in done.err
    assert "target 'acme' is not available here: get a licence from Acme and set ACME_LICENSE" in " ".join(
        done.err.split()
    )
    assert not installed.files()


def test_wrong_option(installed, environment):
    """Its options are checked like ours, with the line of the zoo file."""
    installed.zoo(MODEL, ("acme",), recipe(clockrate=1))
    done = installed.export(env=environment)
    assert done.code == 2
    assert "zoo.yaml:" in done.err
    assert "clockrate" in done.err
    assert "its options: clock_rate" in " ".join(done.err.split())


def test_not_installed(installed):
    """Without the package there is no such target."""
    installed.zoo(MODEL, ("acme",), recipe())
    done = installed.export()
    assert done.code == 2
    assert "unknown target 'acme'" in done.err
