"""pteforge with the newest versions that pyproject.toml allows, not those of the lock file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pteforge
import pytest
from pteforge.tests.flows.server.conftest import eventually, running_server

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

ROOT = Path(pteforge.__file__).parent
STARTER = ROOT / "examples" / "zoo" / "starter.yaml"


def run(*command: str | Path, **environment: str) -> str:
    """What a command prints, which must succeed."""
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a virtual environment where pip alone chose the versions; logs what it chose."""
    folder = tmp_path_factory.mktemp("newest")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "out", "tests")
    shutil.copytree(ROOT, folder / "source", ignore=ignored)  # a build leaves files in its source
    run(sys.executable, "-m", "venv", folder / "venv")
    programs = folder / "venv" / "bin"
    run(programs / "python", "-m", "pip", "install", "torch==2.13.0", folder / "source")
    print(run(programs / "python", "-m", "pip", "freeze"))  # noqa: T201 - pytest shows it if a test fails
    return programs


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of Prefect may not read the database of this one."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("PTEFORGE_CACHE", str(tmp_path / "cache"))


def test_the_starter_zoo_is_lowered(programs, tmp_path):
    """All of its files are made and verified."""
    made = tmp_path / "out"
    run(programs / "pteforge", "export", STARTER, "--store", tmp_path / "store", "--out", made)
    assert len(list(made.glob("*/*.pte"))) == 12


def test_the_scheduler_schedules(programs, tmp_path):
    """A server gives a deployment runs by its cron expression, which nobody else asks for."""
    (tmp_path / "server").mkdir()
    with running_server(tmp_path / "server", programs / "python") as (url, _):
        run(programs / "prefect", "work-pool", "create", "forge", "--type", "process", PREFECT_API_URL=url)
        deployment = ["--name", "each-minute", "--cron", "*/1 * * * *", "--pool", "forge"]
        run(programs / "pteforge", "deploy", STARTER, *deployment, PREFECT_API_URL=url)
        scheduled = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
        found = eventually(lambda: httpx.post(f"{url}/flow_runs/filter", json=scheduled).json())
    assert all(run["auto_scheduled"] for run in found)
