"""Runs whose Prefect server is not there, goes away, or is none of the user's: work is done, or the error is clear."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def unreachable() -> dict[str, str]:
    """The environment of commands whose server is not there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}


def test_server_that_is_not_there(room, unreachable):
    """A server that cannot be reached is one clear error, with what to check, and nothing is half done."""
    room.zoo({"net": "nets:linear"}, ("portable-fp32",))
    done = room.export(env=unreachable)
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert line.startswith("error: Prefect could not run the flow: ")
    assert unreachable["PREFECT_API_URL"] in line
    assert "PREFECT_API_URL" in line
    assert not room.out.exists()
    assert room.run("store", "verify").code == 0


def test_server_that_is_not_there_for_a_cached_run(warm, unreachable):
    """What is cached is there all the same; that the run was not recorded is a warning."""
    (warm.out / "conv" / "portable-fp32.pte").unlink()
    done = warm.export(env=unreachable)
    assert done.code == 0
    (line,) = done.err.splitlines()
    assert line.startswith("WARNING: Prefect could not record the run, which is complete: ")
    assert (warm.out / "conv" / "portable-fp32.pte").exists()


def test_server_that_dies_under_way(room, mortal_server):
    """A server that goes away while a run goes on costs the record of the run and nothing else: files are made."""
    room.zoo({"patient": "waiting:patient", "prompt": "waiting:prompt"}, ("portable-fp32",))
    os.mkfifo(room.folder / "running")
    os.mkfifo(room.folder / "proceed")
    url, server = mortal_server
    environment = {"PREFECT_API_URL": url, "PREFECT_CLIENT_MAX_RETRIES": "1"}
    with room.start("export", "zoo.yaml", env=environment) as process:
        assert (room.folder / "running").read_text()
        server.kill()
        (room.folder / "proceed").write_text("")
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "2 files verified" in out
    assert err.count("WARNING: Prefect failed") == 1
    assert set(room.files()) == {
        f"{name}/portable-fp32.{end}" for name in ("patient", "prompt") for end in ("pte", "json")
    }


def test_embedded_server(room, tmp_path_factory):
    """Without a server of the user's, the run is recorded whole in their Prefect database by the time it ends."""
    home = tmp_path_factory.mktemp("home")
    room.zoo({"net": "nets:linear"}, ("portable-fp32",))
    done = room.export(env={"PREFECT_HOME": str(home)})
    assert done.code == 0, done.err
    with contextlib.closing(sqlite3.connect(home / "prefect.db")) as database:
        flows = database.execute("select name, state_name from flow_run").fetchall()
        tasks = {
            name: (state, json.loads(tags))
            for name, state, tags in database.execute("select name, state_name, tags from task_run")
        }
        (logged,) = database.execute("select count(*) from log").fetchone()
    assert flows == [("export zoo.yaml", "Completed")]
    assert {state for state, _ in tasks.values()} == {"Completed"}
    assert len(tasks) == 1 + 6
    assert tasks["net edge/forward/portable-fp32"][1] == ["stage:edge", "model:net", "recipe:portable-fp32"]
    assert logged > 0


def test_embedded_server_that_cannot_start(room, tmp_path):
    """A Prefect database that cannot be opened is one clear error, before any stage runs."""
    room.zoo({"net": "nets:linear"}, ("portable-fp32",))
    folder = tmp_path / "a folder"
    folder.mkdir()
    done = room.export(env={"PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder}"})
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert line.startswith("error: Prefect's server could not be started")
    assert "unable to open database file" in line
    assert not room.out.exists()


def test_bisect_without_its_server(warm, unreachable):
    """A server that does not answer costs a warning: the result is on the terminal."""
    environment = {**unreachable, "PREFECT_CLIENT_MAX_RETRIES": "0"}
    done = warm.run("bisect", "zoo.yaml", "conv/portable-fp32", env=environment)
    assert done.code == 0
    assert "loses no quality" in done.out
    assert "Prefect could not take the result" in done.err
