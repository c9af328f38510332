"""`pteforge diff`: files, folders and runs, before and after a change of a zoo."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version

import pytest
from pteforge.artifacts.store import open_store
from pteforge.errors import FileFormatError
from pteforge.flows.cli import release
from pteforge.flows.releases.difference import File, compare_files
from pteforge.flows.reports.comparison import read_delivered
from pteforge.flows.reports.snapshot import Difference, Size
from pteforge.flows.run.toolchains import without_toolchain
from pteforge.formats.pte.reader import open_pte
from pteforge.tasks.results.delivered import MethodCalls
from rich.console import Console

pytestmark = pytest.mark.slow

PORTABLE = {"specializations": [{"target": "portable"}]}
BEFORE, AFTER = "before/net/fat.pte", "out/net/fat.pte"


def zoo(width, scale, *plain):
    """A model with a fat recipe that is scored, and recipes that make the same plain file."""
    fat = {
        "output": {"form": "fat", "external_data": True},
        "specializations": [{"target": "xnnpack"}, {"target": "portable"}],
        "accuracy": {"evaluator": "scoring:finite", "kwargs": {"scale": scale}, "floor": 0.5},
    }
    net = {"source": {"builder": "nets:linear", "kwargs": {"width": width}}}
    return {"net": net}, ("fat", *plain), {"fat": fat, **dict.fromkeys(plain, PORTABLE)}


@pytest.fixture(scope="module")
def lowered(lower_project, lower):
    """Two runs: `before/` has what the first one made, `out/` what the second one made of a wider network."""
    project, run = lower_project(*zoo(512, 1.0, "plain"))
    shutil.copytree(project.out, project.folder / "before")
    shutil.rmtree(project.out)
    project.write_zoo(*zoo(768, 0.75, "lean"))
    assert lower(project).outcome.exit_code == 0
    return project, run


@pytest.fixture(scope="module")
def ids(lowered):
    """Ids of the two runs."""
    project, _ = lowered
    with open_store(str(project.store)) as store:
        second, first = store.runs
    return first.id, second.id


def found(said, name="net/fat"):
    """Changes of a file by area and name, from JSON."""
    (file,) = (file for file in said.json["files"] if file["name"] == name)
    return {(change["area"], change["name"]): (change["before"], change["after"]) for change in file["changes"]}


def test_figures_of_files(lowered):
    """They have the size of `.pte` and `.ptd`, the figures and versions of the provenance, and calls per payload."""
    project, _ = lowered
    path = project.folder / BEFORE
    made = read_delivered(path)
    provenance = json.loads(path.with_suffix(".json").read_text())
    overall = provenance["findings"]["figures"]["overall"]
    assert (made.name, made.value("score"), made.sha256) == ("net/fat", 1.0, provenance["file"]["sha256"])
    assert made.size == provenance["file"]["size"] + provenance["data"]["size"]
    assert (made.sqnr_db, made.figures.overall.max_abs_error) == (overall["sqnr_db"], overall["max_abs_error"])
    assert made.toolchain == provenance["toolchain"]
    assert made.delegated == (MethodCalls("xnnpack", "forward", 1, 0), MethodCalls("portable", "forward", 0, 5))
    plain = read_delivered(path.with_name("plain.pte"))
    assert (plain.name, plain.value("score"), plain.delegated) == (
        "net/plain",
        None,
        (MethodCalls("", "forward", 0, 5),),
    )


def test_files_without_provenance(made, caplog):
    """Without a provenance, or with that of another file, names come from the path and there are no figures."""
    path = made.folder / BEFORE
    provenance = path.with_suffix(".json")
    for content in (b"{}", b"\xff", (made.out / "net" / "fat.json").read_bytes(), None):
        if content is None:
            provenance.unlink()
        else:
            provenance.write_bytes(content)
        caplog.clear()
        found = read_delivered(path)
        assert (found.name, found.figures, found.toolchain) == ("net/fat", None, {})
        assert len(found.delegated) == 2
        assert ("fat.json is not used" in caplog.text) == (content is not None)
    path.write_bytes(b"not a program")
    with pytest.raises(FileFormatError, match=r"not a \.pte file"):
        read_delivered(path)


def test_two_files(made, pteforge):
    """What a wider network changes: sizes, weights, memory and figures by payload, and nothing else."""
    changes = found(pteforge(made, "diff", BEFORE, AFTER, "--json"))
    areas = {"file", "payloads", "delegates", "constants", "memory", "numerics", "accuracy"}
    assert {area for area, _ in changes} == areas
    assert changes["accuracy", "score"] == (1.0, 0.75)
    assert changes["constants", "portable: float32[512, 4]"][0]["size"] == 512 * 4 * 4
    assert changes["constants", "portable: float32[512, 4]"][1] is None
    old, new = changes["delegates", "xnnpack: forward XnnpackBackend"]
    assert (old["count"], new["count"]) == (1, 1)
    assert old["sha256"] != new["sha256"]
    old, new = changes["memory", "portable: forward buffer 1"]
    assert old["size"] < new["size"]
    assert {"weights (.ptd)", "size", "SHA-256"} == {name for area, name in changes if area == "file"}


def test_versions_in_payloads(made):
    """A payload's version of ExecuTorch is a fact, which says all about files that differ in nothing else.

    What an upgrade changes leaves it out, as it does the versions of the toolchain.
    """
    path, older = made.out / "net" / "fat.pte", made.folder / "older" / "net" / "fat.pte"
    shutil.copytree(path.parent, older.parent)
    content, installed = path.read_bytes(), version("executorch").encode()
    assert content.count(installed) == 2
    older.write_bytes(content.replace(installed, b"0.0.1"))
    found = compare_files("net/fat", File.at(older), File.at(path))
    payloads = [("toolchain", f"executorch of payload {name}", "0.0.1") for name in ("xnnpack", "portable")]
    changes = [(change.area, change.name, change.before) for change in found.changes if change.area == "toolchain"]
    assert changes == payloads
    digest = [change for change in found.changes if change.name == "SHA-256"]
    without = replace(found, changes=(*(change for change in found.changes if change.area == "toolchain"), *digest))
    assert without_toolchain(without).status == "equal"
    grown = Difference("constants", "weight", Size(1), Size(2))
    assert without_toolchain(replace(without, changes=(*without.changes, grown))).status == "changed"
    assert without_toolchain(replace(without, changes=tuple(digest))).status == "changed"


def test_a_changed_weight(made, pteforge):
    """Of several constants that look alike, the changed one is listed; a note says that provenance is missing."""
    path = made.out / "net" / "lean.pte"
    extent = max((constant.extent for constant in open_pte(path).constants), key=lambda extent: extent.size)
    content = bytearray(path.read_bytes())
    content[extent.offset] ^= 1
    shutil.copy(path, made.folder / "good.pte")
    path.write_bytes(content)
    said = pteforge(made, "diff", "good.pte", "out/net/lean.pte")
    assert (said.code, said.out.count("float32[")) == (0, 1), said.out
    assert "has no provenance next to it" in said.out


def test_folders(made, pteforge):
    """Files are compared by name; one that only one side has is added or removed."""
    said = pteforge(made, "diff", "before", "out")
    assert said.code == 0, said.err
    assert "net/plain: removed" in said.out
    assert "net/lean: added" in said.out
    assert said.out.endswith("files: 1 changed, 1 added, 1 removed\n")
    shutil.copy(made.out / "net" / "lean.pte", made.out / "net" / "lean.rejected.pte")
    assert pteforge(made, "diff", "out", "out").out == "no differences\n"


def test_runs(made, pteforge, ids):
    """Of runs, files are read from where the run put them or from the store; a copy of the folder has no differences.

    Without the store's objects, diff compares the recorded figures only, and says so.
    """
    first, second = ids
    assert pteforge(made, "diff", first[:12], "before").out == "no differences\n"
    assert pteforge(made, "diff", second, "out").out == "no differences\n"
    both = ("diff", first, second[:12], "--json")
    assert found(pteforge(made, *both)) == found(pteforge(made, "diff", "before", "out", "--json"))
    shutil.rmtree(made.store / "objects")
    (made.store / "objects").mkdir()
    said = pteforge(made, "diff", first, "out", "--fail-on", "delegation")
    assert said.code == 1
    assert "the earlier file does not exist any more" in said.out
    assert "accuracy" in said.out
    assert "delegation cannot be compared" in said.err


def test_limits(made, pteforge):
    """An exceeded limit ends with 1 and says which file and by how much, in text, JSON and Markdown."""
    limits = ("--fail-on", "growth=2%,score=0.5%,delegation")
    said = pteforge(made, "diff", "before", "out", *limits)
    assert said.code == 1
    assert "net/fat: the file grew by " in said.err
    assert "net/fat: the score fell by 0.25, from 1 to 0.75; at most 0.005 is allowed" in said.err
    assert len(said.err.splitlines()) == 2
    assert len(json.loads(pteforge(made, "diff", "before", "out", "--json", *limits).out)["regressions"]) == 2
    assert "the score fell by 0.25" in pteforge(made, "diff", "before", "out", "--markdown", *limits).out
    assert pteforge(made, "diff", "before", "out", "--fail-on", "growth=200%").code == 0


def test_markdown(made, pteforge):
    """All rows of a table have equally many cells, and names cannot break it."""
    (made.folder / "a|b").mkdir()
    for name in ("fat.pte", "fat.ptd", "fat.json"):
        shutil.copy(made.folder / "before" / "net" / name, made.folder / "a|b" / name)
    said = pteforge(made, "diff", "a|b", "out/net", "--markdown")
    assert said.code == 0, said.err
    assert said.out.startswith("# From a\\|b to out/net\n")
    rows = [line for line in said.out.splitlines() if line.startswith("|")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {6}


def test_narrow_terminals(made, pteforge, monkeypatch):
    """Tables fit into 80 columns with nothing cut off."""
    monkeypatch.setattr(release, "open_console", lambda: Console(width=80))
    said = pteforge(made, "diff", "before", "out")
    assert said.code == 0, said.err
    assert max(map(len, said.out.splitlines())) <= 80
    assert "…" not in said.out


def test_bad_input(made, pteforge, ids):
    """What cannot be compared is one message that says what to do."""
    (made.folder / "empty").mkdir()
    pteforge(made, "diff", "nowhere.pte", "out").refused("no file or folder 'nowhere.pte'", "pteforge runs")
    pteforge(made, "diff", "empty", "out").refused("no .pte files in the folder empty")
    pteforge(made, "diff", BEFORE, "out").refused("is a file and out is not")
    pteforge(made, "diff", "zoo.yaml", AFTER).refused("zoo.yaml", "not a .pte file")
    pteforge(made, "diff", "before", "out", "--fail-on", "growth").refused("'growth' is not a limit", "growth=2%")
    pteforge(made, "diff", "before", "out", "--json", "--markdown").refused("--json and --markdown")
    pteforge(made, "diff", ids[0], "before", "--store", "none").refused("there is no store at none")
    with open_store(str(made.store)) as store:
        run = next(iter(store.runs))
        store.runs.write(replace(run, id=f"{run.id}0", started="2020-01-01T00:00:00+00:00"))
        store.runs.write(replace(run, id="empty", started="2020-01-01T00:00:00+00:00", files={}))
    pteforge(made, "diff", run.id[:8], "out").refused(f"'{run.id[:8]}' begins the ids of 2 runs", f"{run.id}0")
    pteforge(made, "diff", "emp", "out").refused("recorded no files")


def test_imports_nothing_heavy(made):
    """The command imports neither torch nor Prefect."""
    code = (
        "import sys; from pteforge.tests.command import run_command; "
        f"sys.argv[1:] = ['diff', {BEFORE!r}, {AFTER!r}]; run_command(); "
        "print([name for name in ('torch', 'executorch', 'prefect') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=made.folder, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("files: 1 changed\n[]\n"), done.stderr
