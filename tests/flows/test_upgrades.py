"""What each released version has stored is read by the present one; `upgrades/make.py` made it."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from pteforge.tests.flows.conftest import Project

STORED = sorted(Path(__file__).with_name("upgrades").glob("*.tar.xz"))
SEED = ("--set", "models.mixer.seed=2")  # releases have 0 and 1


@pytest.fixture(params=STORED, ids=lambda path: path.name.removesuffix(".tar.xz"))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """A zoo, and all that a version has stored of two runs of it."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "project", filter="data")
    return Project(tmp_path / "project")


def releases(stored: Project) -> list[str]:
    """Names of the releases, the oldest first."""
    return sorted(path.stem for path in (stored.folder / "releases" / "releases").glob("*.json"))


def test_there_are_versions():
    """The first release is among them."""
    assert "0.1.0.tar.xz" in {path.name for path in STORED}


def test_stores(stored, pteforge, caplog):
    """Every record of a store and every object is read, nothing counts as damaged or unknown; gc keeps the rest."""
    listed = pteforge(stored, "store", "ls", "--json").json
    assert {"program/aten", "graph/edge", "payload/pte", "payload/nfat", "report/provenance"} <= {*listed["kinds"]}
    assert pteforge(stored, "store", "verify").out.endswith(": 0 damaged\n")
    assert pteforge(stored, "store", "gc", "--keep-last", "1", "--keep-newer-than", "0s").code == 0
    assert pteforge(stored, "store", "verify").code == 0
    left = pteforge(stored, "store", "ls", "--json").json
    assert 0 < left["records"] < listed["records"]
    assert caplog.text == ""


def test_runs(stored, pteforge, caplog):
    """The history of runs: what they were asked, what became of each stage and file, and what a key had changed by."""
    new, old = pteforge(stored, "runs", "--json").json["runs"]
    assert [run["status"] for run in (old, new)] == ["completed", "completed"]
    assert new["parameters"]["overrides"] == ["models.mixer.seed=1"]
    said = pteforge(stored, "why", "mixer")
    assert "params.seed: 0 -> 1" in said.out
    assert "had not run before" in pteforge(stored, "why", "mixer", "--run", old["id"]).out
    files = pteforge(stored, "diff", old["id"], new["id"], "--json").json["files"]
    assert {file["name"]: file["status"] for file in files} == {
        "mixer/fat": "changed",
        "mixer/portable-fp32": "changed",
    }
    assert all(file["before"]["sqnr_db"] > 100 for file in files)
    assert caplog.text == ""


def test_releases(stored, pteforge):
    """Releases are listed, compared with each other and with results, promoted and fetched."""
    old, new = releases(stored)
    listed = pteforge(stored, "release", "list", "releases", "--json").json
    assert [release["release"] for release in listed["releases"]] == [new, old]
    assert listed["channels"]["latest"]["release"] == new
    files = pteforge(stored, "diff", f"releases#{old}", "out", "--json").json["files"]
    assert [file["status"] for file in files] == ["changed", "changed"]
    same = pteforge(stored, "diff", "releases#latest", "out", "--json").json["files"]
    assert [file["status"] for file in same] == ["equal", "equal"]
    assert pteforge(stored, "release", "promote", "releases", old).code == 0
    fetch = ("release", "fetch", "releases", "mixer/fat", "--channel", "stable", "--out", "fetched")
    assert pteforge(stored, *fetch).code == 0
    assert (stored.folder / "fetched" / "mixer" / "fat.pte").is_file()


@pytest.mark.slow
def test_files(stored):
    """Files still compute what eager did, with the inputs and outputs that were stored; so does each payload."""
    said = stored.run("verify", "out")
    assert said.code == 0, said.out + said.err
    assert "portable-fp32" in said.out
    assert "NFAT version 2 with 2 payloads" in stored.run("inspect", "out/mixer/fat.pte").out


@pytest.mark.slow
def test_runs_on_top(stored):
    """`plan` gives a reason for each stage that would run; a run uses the store, and its page says what has changed."""
    plan = stored.run("plan", "zoo.yaml", *SEED, "--json").json
    due = [stage for stage in plan["stages"] if stage["runs"] == "yes"]
    assert due[0]["stage"] == "mixer export"
    assert all(stage["changed"] for stage in due)
    said = stored.export(*SEED)
    assert said.code == 0, said.out + said.err
    assert "is not used" not in said.err
    assert "2 files verified in out" in said.out
    assert len(releases(stored)) == 3
    runs = stored.run("runs", "--json").json["runs"]
    assert len(runs) == 3
    assert stored.run("diff", runs[1]["id"], runs[0]["id"]).out.count("changed") >= 2
    assert "change" in (stored.out / "index.html").read_text(encoding="utf-8")
    assert stored.run("store", "verify").code == 0
