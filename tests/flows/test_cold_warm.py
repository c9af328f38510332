"""The main job from the command line: the first run makes every file, the second run does nothing."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from pathlib import Path

import pteforge
import pytest
from pteforge.artifacts.store import open_store
from pteforge.formats.pte.reader import open_pte
from pteforge.tasks.engine.workers import Workers
from pteforge.tasks.engine.workers.protocol import PROCESSES_VARIABLE
from pteforge.tests.flows.conftest import BATCH, delivered

FILES = {
    f"{model}/{recipe}.{ending}"
    for model in ("linear", "conv")
    for recipe in ("portable-fp32", "xnnpack-fp32")
    for ending in ("pte", "json")
}


def test_first_run_makes_every_file(cold):
    """The first run makes a file and its provenance for every model and recipe, as the recipes say, and no more."""
    assert cold.first.code == 0, cold.first.err
    assert set(cold.project.files()) == FILES
    assert "4 files verified in out; 26 stages run, 0 cached" in cold.first.out
    backends = {path.name: open_pte(path).backends for path in cold.project.out.glob("conv/*.pte")}
    assert backends == {"portable-fp32.pte": (), "xnnpack-fp32.pte": ("XnnpackBackend",)}
    lines = cold.first.err.splitlines()
    assert sum(": verified (13 stages run, 0 cached)" in line for line in lines) == 2
    assert len(lines) == 28
    assert any(line.startswith("linear verify/xnnpack-fp32: ") for line in lines)
    assert "\x1b" not in cold.first.err + cold.first.out
    with open_store(str(cold.project.store)) as store:
        assert set(store.ledger.whole_models(str(cold.project.folder / "zoo.yaml"))) == {"linear", "conv"}


def test_provenance(cold):
    """Provenance holds the file's digest, the keys of its stages, versions, and figures within the recipe's bounds."""
    path = cold.project.out / "linear" / "xnnpack-fp32.json"
    text = path.read_text()
    provenance = json.loads(text)
    assert provenance["file"]["sha256"] == hashlib.sha256(path.with_suffix(".pte").read_bytes()).hexdigest()
    stages = ("export", "edge/forward", "partition/forward", "preprocess", "compile", "serialize", "verify")
    assert set(provenance["stage_keys"]) == set(stages)
    assert {"torch", "executorch", "pteforge"} <= set(provenance["toolchain"])
    (worst,) = provenance["findings"]["figures"]["methods"].values()
    assert worst["sqnr_db"] >= provenance["bounds"]["min_sqnr_db"]
    assert worst["cases"] == 4  # one example, and random inputs of the smallest, the largest and another size
    assert str(cold.project.folder) not in text
    run = provenance["run"]
    assert (run["zoo"], run["host"], run["version"]) == ("zoo", platform.node(), pteforge.__version__)
    with open_store(str(cold.project.store)) as store:
        assert run["id"] in [record.id for record in store.runs]


_DRIVER = """
import sys, time
started = time.monotonic()
from pteforge.tests.command import run_command
from pteforge.tasks.engine.workers import pool
started_servers = []
start = pool.WarmServer.__init__
pool.WarmServer.__init__ = lambda self, preload: (started_servers.append(preload), start(self, preload))
sys.argv = ["pteforge", "export", "zoo.yaml"]
code = run_command()
heavy = [name for name in ("torch", "executorch", "prefect") if name in sys.modules]
print(code, heavy, started_servers, time.monotonic() - started, sep="\\n", file=sys.stderr)
"""


def test_second_run_does_nothing(warm, capsys):
    """The second run runs no stage, starts no worker, imports no torch, ExecuTorch or Prefect, and changes no file."""
    before = {path: path.stat().st_mtime_ns for path in warm.out.rglob("*")}
    command = [sys.executable, "-c", _DRIVER]
    done = subprocess.run(command, cwd=warm.folder, env=warm.environment(), capture_output=True, text=True, check=True)
    code, heavy, servers, seconds = done.stderr.splitlines()
    with capsys.disabled():
        sys.stdout.write(f"\nwarm run: {float(seconds):.2f} s\n")
    assert (code, heavy, servers) == ("0", "[]", "[]")
    assert "4 files verified in out; 0 stages run, 26 cached" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in warm.out.rglob("*")} == before


@pytest.mark.slow
def test_read_only_store(warm):
    """A store that cannot be written can be verified and looked at, and serves a run that finds everything in it."""
    for path in [warm.store, *warm.store.rglob("*")]:
        path.chmod(path.stat().st_mode & 0o555)
    again = warm.export("--out", "again", unprivileged=True)
    assert again.code == 0, again.err
    assert "0 stages run, 26 cached" in again.out
    assert delivered(warm.folder / "again") == warm.files()
    assert again.err.count("WARNING: the run is not recorded") == 1
    verified = warm.run("store", "verify", unprivileged=True)
    assert (verified.code, verified.err) == (0, "")
    refused = warm.export("--refresh", unprivileged=True)
    assert refused.code == 2
    assert "cannot be written" in refused.err
    assert "make it writable" in refused.err


def test_damaged_read_only_store(warm):
    """All that is wrong in a store that cannot be written is found, said, and left as it is."""
    damaged = max((warm.store / "objects").glob("*/*"), key=lambda path: path.stat().st_size)
    damaged.chmod(0o644)
    damaged.write_bytes(b"rot")
    before = sorted(warm.store.rglob("*"))
    for path in [warm.store, *before]:
        path.chmod(path.stat().st_mode & 0o555)
    done = warm.run("store", "verify", "--json", unprivileged=True)
    report = json.loads(done.out)
    assert done.code == 1
    assert (report["read_only"], report["damaged"]) == (True, [damaged.name])
    assert report["incomplete"]
    assert sorted(warm.store.rglob("*")) == before
    said = warm.run("store", "verify", unprivileged=True)
    assert said.out.count("left, since the store is read-only") == 1


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(b"something else")], ids=["gone", "edited"]
)
@pytest.mark.parametrize("name", ["linear/xnnpack-fp32.pte", "linear/xnnpack-fp32.json"])
def test_results_are_restored_without_work(warm, pteforge, name, damage):
    """A result that was deleted or edited comes back from the store, and no stage runs for it."""
    before = warm.files()
    damage(warm.out / name)
    again = pteforge(warm, "export", "zoo.yaml")
    assert again.code == 0
    assert "0 stages run, 26 cached" in again.out
    assert warm.files() == before


REASON = "its kernels take no such layers"


@pytest.fixture
def partly(warm):
    """The cached project, with a zoo whose XNNPACK recipe is not for the model `linear`."""
    xnnpack = {"extends": "xnnpack-fp32", "not_for": {"lin*": REASON}}
    linear = {"source": "nets:linear", "dynamic_shapes": BATCH}
    warm.write_zoo({"linear": linear, "conv": "nets:conv"}, own={"xnnpack-fp32": xnnpack})
    return warm


def test_pair_is_left_out(partly, pteforge):
    """The pair is no file and no failure: exit code 0, its status and reason in JSON; others are found as before."""
    (partly.out / "linear" / "xnnpack-fp32.pte").unlink()
    done = pteforge(partly, "export", "zoo.yaml", "--json")
    assert done.code == 0
    assert done.json["stages"] == {"ran": 0, "cached": 19}
    assert done.json["models"]["linear"]["xnnpack-fp32"] == {"status": "not applicable", "reason": REASON}
    assert done.json["models"]["linear"]["portable-fp32"]["status"] == "cached"
    assert done.json["models"]["conv"]["xnnpack-fp32"]["status"] == "cached"
    assert not (partly.out / "linear" / "xnnpack-fp32.pte").exists()


def test_pairs_that_do_not_apply(partly, pteforge):
    """The table has the pair, a line below it has the reason, and the last line counts it apart from failures."""
    done = pteforge(partly, "export", "zoo.yaml", "--recipe", "xnnpack-fp32")
    assert done.code == 0
    assert f"linear/xnnpack-fp32: does not apply: {REASON}" in done.out
    (row,) = (line for line in done.out.splitlines() if line.split()[:2] == ["linear", "xnnpack-fp32"])
    assert row.split(maxsplit=2)[2].strip() == "not applicable"
    assert "1 file verified in out, 1 not applicable; 0 stages run" in done.out
    pteforge(partly, "why", "linear").refused("no stage of 'linear' ran or was found in its last run")
    pteforge(partly, "export", "zoo.yaml", "--model", "linear", "--recipe", "xnnpack-fp32").refused(
        f"'xnnpack-fp32' does not apply to 'linear': {REASON}", "zoo.yaml:", "recipes.xnnpack-fp32.not_for"
    )


@pytest.mark.slow
def test_bytes_do_not_depend_on_where_and_how(cold, make_project, lower, tmp_path, monkeypatch):
    """Files and provenance are the same from a cold store in another folder, one stage at a time, in fresh processes.

    The command line made the first ones, several stages at once, with another hash seed; stages of one payload shared a
    process.
    """
    monkeypatch.setenv("PYTHONHASHSEED", "4242")
    monkeypatch.setenv(PROCESSES_VARIABLE, "fresh")
    project = make_project(tmp_path / "elsewhere" / "project")
    project.write("zoo.yaml", (cold.project.folder / "zoo.yaml").read_text())
    with Workers(jobs=1) as workers:
        run = lower(project, pool=workers)
    assert run.outcome.exit_code == 0
    assert {model.cached for model in run.outcome.models} == {0}
    assert project.files() == cold.project.files()
    assert outputs(project) == outputs(cold.project)


def outputs(project):
    """Outputs of stages by kind and identity: other bytes of a program are stack traces, which name folders."""
    with open_store(str(project.store)) as store:
        return {(ref.kind, ref.identity) for record in store.ledger for ref in record.outputs.values()}
