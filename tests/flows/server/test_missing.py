"""Runs whose Prefect server is unreachable, dies, or is embedded: the work is done."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("broken", ["server", "database", "home"])
def test_prefect_that_cannot_be_used(project, unreachable, tmp_path, broken):
    """Without Prefect a run makes all files; one warning says why Prefect knows nothing of it."""
    (tmp_path / "file").touch()
    environment = {
        "server": unreachable,
        "database": {"PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{tmp_path}"},
        "home": {"PREFECT_HOME": str(tmp_path / "file" / "home")},
    }[broken]
    project.write_zoo({"net": "nets:linear"}, ("portable-fp32",))
    for ran in (6, 0) if broken == "server" else (6,):
        done = project.export("--json", env=environment)
        assert done.code == 0, done.err
        assert done.json["stages"]["ran"] == ran
        warnings = [line for line in done.err.splitlines() if not line.startswith("net")]
        assert len(warnings) == 1, done.err
        assert warnings[0].startswith("WARNING: Prefect failed ")
        assert set(project.files()) == {"net/portable-fp32.pte", "net/portable-fp32.json"}


def test_bisect_without_its_server(warm, unreachable):
    """An unreachable server is a warning: the result is on the terminal."""
    done = warm.run("bisect", "zoo.yaml", "conv/portable-fp32", env=unreachable | {"PREFECT_CLIENT_MAX_RETRIES": "0"})
    assert done.code == 0
    assert "loses no quality" in done.out
    assert "Prefect could not take the result" in done.err


def test_server_that_dies_during_a_run(project, mortal_server):
    """If the server dies during a run, only the record of the run is lost: all files are made."""
    project.write_zoo({"patient": "waiting:patient", "prompt": "waiting:prompt"}, ("portable-fp32",))
    project.make_pipes()
    url, server = mortal_server
    environment = {"PREFECT_API_URL": url, "PREFECT_CLIENT_MAX_RETRIES": "1"}
    with project.start("export", "zoo.yaml", env=environment) as process:
        assert (project.folder / "running").read_text()
        server.kill()
        (project.folder / "proceed").write_text("")
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "2 files verified" in out
    assert err.count("WARNING: Prefect failed") == 1
    assert set(project.files()) == {
        f"{name}/portable-fp32.{end}" for name in ("patient", "prompt") for end in ("pte", "json")
    }


def test_embedded_server(project, tmp_path_factory):
    """Without a server, the run is recorded completely in the user's Prefect database by the time it ends."""
    home = tmp_path_factory.mktemp("home")
    project.write_zoo({"net": "nets:linear"}, ("portable-fp32",))
    done = project.export(env={"PREFECT_HOME": str(home)})
    assert done.code == 0, done.err
    with contextlib.closing(sqlite3.connect(home / "prefect.db")) as database:
        flows = database.execute("select name, state_name from flow_run").fetchall()
        tasks = {
            name: (state, json.loads(tags))
            for name, state, tags in database.execute("select name, state_name, tags from task_run")
        }
        assert _rows(database, "log")["log"] > 0
        for table, column in _TIMES:
            database.execute(f"update {table} set {column} = datetime({column}, '-31 days') || '.000000'")  # noqa: S608
        database.commit()
    assert flows == [("export zoo.yaml", "Completed")]
    assert {state for state, _ in tasks.values()} == {"Completed"}
    assert len(tasks) == 1 + 6
    assert tasks["net edge/forward/portable-fp32"][1] == ["stage:edge", "model:net", "recipe:portable-fp32"]

    assert project.export("--refresh", env={"PREFECT_HOME": str(home)}).code == 0
    with contextlib.closing(sqlite3.connect(home / "prefect.db")) as database:
        left = _rows(database, "flow_run", "task_run", "log where flow_run_id not in (select id from flow_run)")
        old = _rows(database, "events where occurred < datetime('now', '-30 days')")
        recorded = _rows(database, "events")
    assert left == {"flow_run": 1, "task_run": 7, "log": 0}
    assert old["events"] == 0 < recorded["events"]


_TIMES = (("flow_run", "end_time"), ("events", "occurred"), ("event_resources", "occurred"))


def _rows(database, *tables):
    """Number of rows by table; each is a name, perhaps with a condition."""
    query = "select count(*) from "
    return {name.split()[0]: database.execute(query + name).fetchone()[0] for name in tables}
