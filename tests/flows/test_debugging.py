"""Debug mode of a zoo: sibling files with records and maps, which go away with the next usual run."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
from executorch.devtools.etrecord import parse_etrecord
from pteforge.tests.flows.conftest import FAT

pytestmark = pytest.mark.slow

END = {"compile", "pack", "serialize", "verify", "report"}
SIBLINGS = {
    "net/xnnpack-fp32.etrecord",
    "net/xnnpack-fp32.debug.json",
    "net/fat.xnnpack.etrecord",
    "net/fat.portable.etrecord",
    "net/fat.debug.json",
}


@pytest.fixture(scope="module")
def usual(lower_project):
    return lower_project({"net": "nets:linear"}, ("xnnpack-fp32", "fat"), {"fat": FAT})[0]


def test_siblings(usual, tmp_path, lower, pteforge):
    """Next to each file in debug mode are a record and maps, which lead to lines of the model."""
    project = usual.copy(tmp_path / "project")
    run = lower(project, "recipes.xnnpack-fp32.debug=true", "recipes.fat.debug=true")
    assert run.outcome.exit_code == 0
    assert {step.partition("/")[0].partition(".")[0] for step in run.ran("net")} == END

    files = project.files()
    assert {name for name in files if "etrecord" in name or "debug" in name} == SIBLINGS
    sources = json.loads(files["net/xnnpack-fp32.debug.json"])["debug_sources"]["forward"]
    assert {source["line"].partition(":")[0] for listed in sources.values() for source in listed} == {"nets.py"}
    assert set(json.loads(files["net/fat.debug.json"])) == {"xnnpack", "portable"}
    for path in project.out.rglob("*.etrecord"):
        assert parse_etrecord(str(path)).edge_dialect_program is not None
    provenance = json.loads(files["net/xnnpack-fp32.json"])
    digest = hashlib.sha256(files["net/xnnpack-fp32.etrecord"]).hexdigest()
    assert provenance["artifacts"]["etrecord"]["root"][0] == digest

    shutil.rmtree(project.out)
    done = pteforge(project, "export", "zoo.yaml", "--debug", "--json")
    assert (done.code, done.json["stages"]["ran"]) == (0, 0)
    assert project.files() == files

    assert lower(project).outcome.exit_code == 0
    assert project.files() == usual.files()
