"""A target of another package: installed, found by its entry point, and used by the command line."""

from __future__ import annotations

import pytest
from pteforge.formats.nfat.container import open_fat


@pytest.fixture
def write(project):
    """Writes a zoo with a recipe for devices with Acme's NPU and for those without."""

    def write(**options):
        specializations = [{"target": "acme", "options": options}, {"target": "portable"}]
        recipe = {"specializations": specializations, "output": {"form": "fat"}}
        project.write_zoo({"linear": "nets:linear"}, ("acme",), {"acme": recipe})

    return write


@pytest.mark.slow
def test_exports(project, write):
    """It lowers as our own targets do. Its output is random and made once: no stage runs again until it must."""
    environment = {**project.install("acme"), "ACME_LICENSE": "1"}
    write(clock_rate=123)

    def files():
        done = project.export(env=environment)
        assert done.code == 0, done.err
        return project.files()

    first = files()
    (name,) = (name for name in first if name.endswith(".pte"))
    payloads = open_fat(project.out / name).container.payloads
    assert [payload.description.backends for payload in payloads] == [("AcmeBackend",), ()]
    assert b"ACME123" in first[name]
    assert files() == first

    project.edit("zoo.yaml", "123", "456")
    assert b"ACME456" in files()[name]
    project.edit("site/acme_pteforge/backend.py", 'b"ACME"', 'b"ACME-2-"')
    assert b"ACME-2-456" in files()[name]


def test_checked_before_any_work(project, write, pteforge, monkeypatch):
    """Its options and requirements are checked like those of our own targets, with the line of the zoo file.

    Without the package there is no target of that name.
    """
    write()
    pteforge(project, "export", "zoo.yaml").refused("unknown target 'acme'")
    monkeypatch.syspath_prepend(project.install("acme")["PYTHONPATH"])
    licence = "target 'acme' is not available here: get a licence from Acme and set ACME_LICENSE"
    for options, parts in (({}, (licence,)), ({"clockrate": 1}, ("clockrate", "its options: clock_rate"))):
        write(**options)
        pteforge(project, "export", "zoo.yaml").refused("zoo.yaml:", "recipes.acme", *parts)
    assert not project.files()
