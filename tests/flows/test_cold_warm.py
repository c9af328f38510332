"""The main job from the command line: the first run makes every file, the second one nothing at all."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pteforge.artifacts.pte.reader import open_pte

pytestmark = pytest.mark.timeout(600)

FILES = {
    f"{model}/{recipe}.{ending}"
    for model in ("linear", "conv")
    for recipe in ("portable-fp32", "xnnpack-fp32")
    for ending in ("pte", "json")
}


def test_first_run_makes_every_file(cold):
    """The first run ends with 0 and makes a file and its provenance for every model and recipe, and nothing else."""
    assert cold.first.code == 0, cold.first.err
    assert set(cold.room.files()) == FILES
    assert "4 files verified in out; 26 stages run, 0 cached" in cold.first.out


def test_files_are_what_was_asked_for(cold):
    """What is in the files is what the recipes say: XNNPACK delegates in its files, none in the portable ones."""
    backends = {path.name: open_pte(path).backends for path in cold.room.out.glob("conv/*.pte")}
    assert backends == {"portable-fp32.pte": (), "xnnpack-fp32.pte": ("XnnpackBackend",)}


def test_provenance_tells_how_a_file_was_made(cold):
    """Provenance holds the file's digest, the keys of its stages, versions, and figures within the recipe's bounds."""
    path = cold.room.out / "linear" / "xnnpack-fp32.json"
    text = path.read_text()
    provenance = json.loads(text)
    assert provenance["file"]["sha256"] == hashlib.sha256(path.with_suffix(".pte").read_bytes()).hexdigest()
    assert set(provenance["stage_keys"]) == {
        "export",
        "edge/forward",
        "partition/forward",
        "preprocess",
        "compile",
        "serialize",
        "verify",
    }
    assert {"torch", "executorch", "pteforge"} <= set(provenance["toolchain"])
    (worst,) = provenance["verification"]["figures"]["methods"].values()
    assert worst["sqnr_db"] >= provenance["verification"]["bounds"]["min_sqnr_db"]
    assert worst["cases"] == 3  # one example and two drawn inputs
    assert str(cold.room.folder) not in text


def test_progress_is_told_in_plain_lines(cold):
    """Not in a terminal, a line tells of every stage that ran and of every model; Prefect says nothing."""
    lines = cold.first.err.splitlines()
    assert sum(": verified (13 stages run, 0 cached)" in line for line in lines) == 2
    assert len(lines) == 28
    assert "\x1b" not in cold.first.err + cold.first.out


_DRIVER = """
import sys, time
started = time.monotonic()
from pteforge.flows.cli import run_command
from pteforge.tasks.workers import pool
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
    environment = warm._environment(None)
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER], cwd=warm.folder, env=environment, capture_output=True, text=True, check=True
    )
    code, heavy, servers, seconds = done.stderr.splitlines()
    with capsys.disabled():
        sys.stdout.write(f"\nwarm run: {float(seconds):.2f} s\n")
    assert (code, heavy, servers) == ("0", "[]", "[]")
    assert "4 files verified in out; 0 stages run, 26 cached" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in warm.out.rglob("*")} == before


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(b"something else")], ids=["gone", "edited"]
)
@pytest.mark.parametrize("name", ["linear/xnnpack-fp32.pte", "linear/xnnpack-fp32.json"])
def test_results_are_restored_without_work(warm, name, damage):
    """A result that was deleted or edited comes back from the store, and no stage runs for it."""
    before = warm.files()
    damage(warm.out / name)
    again = warm.export()
    assert again.code == 0
    assert "0 stages run, 26 cached" in again.out
    assert warm.files() == before
