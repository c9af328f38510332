"""What goes wrong at night: each drill on deployed runs, with PostgreSQL, S3 and three workers.

Whatever it is, all files are made, nothing is computed twice but what was in flight, states are right, nothing is left
running, and the next night is normal. `DRILL_SECONDS` says how long servers are away.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pteforge.tests.faults.faulty_files import small_disk
from pteforge.tests.flows.server.conftest import eventually
from pteforge.tests.flows.server.site import FINAL, MODELS, NAMES, STAGES, Site, run_site

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]

AWAY = float(os.environ.get("DRILL_SECONDS", "60"))
SECONDS = 5.0  # of each model's builder
OUTAGES = (50.0, 20.0, 300.0, 120.0)  # seconds; leases expire after 45
BETWEEN = 15.0
WORKERS = {"one": 2, "two": 2, "three": 2}


@pytest.fixture
def site(project) -> Iterator[Site]:
    with run_site(project, WORKERS) as site:
        site.write_zoo(seconds=SECONDS)
        yield site


def check_night(site: Site, night: str, *, twice: set[str] = frozenset()) -> None:
    """All files are made and released, each model was built once, or `twice` at most, and nothing is left."""
    state = site.wait_for(night)
    assert state["type"] == "COMPLETED", state
    assert site.files() == NAMES
    assert {name for name, count in site.built().items() if count > 1} <= twice
    assert not (site.project.folder / "twice").exists()
    assert len(site.releases()["releases"]) == 1
    eventually(lambda: not site.unfinished())
    eventually(lambda: not any(worker.runs() for worker in site.workers.values()))


def check_next_night(site: Site) -> None:
    """A run with nothing to do: it has its turn at once, and no stage runs."""
    before = site.built()
    night = site.start_night()
    state = site.wait_for(night)
    assert (state["type"], state["name"]) == ("COMPLETED", "Cached"), state
    assert site.built() == before
    assert state["message"].endswith("already")
    assert site.record(night)["status"] == "completed"


@pytest.mark.parametrize("models", [None, 1, MODELS], ids=["at the start", "in the middle", "at the end"])
def test_server_is_restarted(site, models):
    """The run goes on while the server is away, and says afterwards how it ended."""
    night = site.start_night()
    if models is None:
        eventually((site.project.folder / "built").exists)
    else:
        site.wait_for(night, models)
    site.stop_server()
    time.sleep(AWAY)
    site.start_server()
    check_night(site, night)
    check_next_night(site)


def test_server_is_restarted_during_a_run_of_one_worker(site):
    """The same for a run that lowers all models itself."""
    site.deploy("--name", "alone")
    night = site.start_night("alone")
    eventually((site.project.folder / "built").exists)
    site.stop_server()
    time.sleep(AWAY)
    site.start_server()
    check_night(site, night)


def test_server_is_gone(site):
    """A server that does not come back costs its record of the run: files and release are there."""
    night = site.start_night()
    site.wait_for(night, 1)
    site.stop_server()
    eventually(lambda: site.files() == NAMES, 900)
    eventually(lambda: site.record(night)["status"] == "completed")
    assert len(site.releases()["releases"]) == 1


def test_run_is_killed(site):
    """The next run adopts the runs of models that are going on or wait, and builds no model again."""
    night = site.start_night()
    site.wait_for(night, 1)
    (parent,) = (runs[night] for worker in site.workers.values() if night in (runs := worker.runs()))
    parent.kill()
    assert site.wait_for(night)["type"] == "CRASHED"
    assert {run["name"] for run in site.runs_of_models(night)} == {f"export zoo.yaml {name}" for name in NAMES}
    second = site.start_night()
    check_night(site, second)
    assert len(site.runs_of_models(night)) == MODELS  # those of the first night
    site.entry("pteforge", "store", "gc", "--keep-last", "1", "--keep-newer-than", "0s")
    check_next_night(site)  # what the killed run and its parts have left counts as no run


def test_runs_that_are_not_needed_any_more_are_cancelled(site):
    """Runs of models that a dead run has left with other settings are cancelled, and do not delay the next night."""
    site.workers.pop("three").kill()
    site.write_zoo(
        seconds=100
    )  # longer than it takes to see that the run is dead: some runs wait then, others still work
    night = site.start_night(overrides=["run.pool=forge", "models.net00.limits.timeout=10m"])
    eventually(lambda: site.runs_of_models(night, "RUNNING"))
    (parent,) = (runs[night] for worker in site.workers.values() if night in (runs := worker.runs()))
    parent.kill()
    assert site.wait_for(night)["type"] == "CRASHED"
    check_night(site, site.start_night(), twice=set(NAMES))
    ends = Counter(run["state"]["type"] for run in site.runs_of_models(night))
    assert ends["CANCELLED"]
    assert set(ends) == {"CANCELLED", "COMPLETED"}


def test_machine_dies(site):
    """A machine that dies with the zoo's run and runs of models: the next night makes what is missing."""
    site.write_zoo(seconds=SECONDS, slow=dict.fromkeys(NAMES[1:], 60.0))  # which are at work when the first one is done
    night = site.start_night()
    site.wait_for(night, 1)
    victim = next(worker for worker in site.workers.values() if night in worker.runs())
    lost = {run["parameters"]["models"] for run in site.runs_of_models(night) if run["id"] in victim.runs()}
    victim.kill()
    second = site.start_night()
    check_night(site, second, twice=lost)
    assert site.run(night)["state"]["type"] == "CRASHED"
    check_next_night(site)


def test_machine_dies_with_models_that_share_a_run(site):
    """Models that were done stay done; the others are lowered by other machines in the same night."""
    site.write_zoo(seconds=SECONDS, weights=0)
    night = site.start_night()
    (batch, *_) = eventually(
        lambda: [run for run in site.runs_of_models(night, "RUNNING") if "," in run["parameters"]["models"]]
    )
    shared = batch["parameters"]["models"].split(",")
    assert 1 < len(shared) < MODELS
    eventually((site.project.folder / "built").exists)
    eventually(lambda: set(site.built()) & set(shared))
    victim = next(worker for worker in site.workers.values() if batch["id"] in worker.runs())
    lost = set(shared)
    if night in victim.runs():  # the zoo's run is to go on
        victim.runs()[batch["id"]].kill()
    else:
        runs = [run for run in site.runs_of_models(night) if run["id"] in victim.runs()]
        lost.update(*(run["parameters"]["models"].split(",") for run in runs))
        victim.kill()
    check_night(site, night, twice=lost)
    assert site.run(batch["id"])["state"]["type"] == "CRASHED"
    parts = [run["parameters"]["models"].split(",") for run in site.runs_of_models(night, "COMPLETED")]
    assert all(set(part) < set(shared) for part in parts if set(part) & set(shared))
    check_next_night(site)


def test_store_is_away(site):
    """Runs wait for the store, once and again: none is called dead, and no builder is called a second time.

    What is cached does not hide a second call, since everything is to run again.
    """
    site.write_zoo(seconds=SECONDS, slow={"net00": sum(OUTAGES) + SECONDS})
    night = site.start_night(refresh=True)
    site.wait_for(night, 1)
    for seconds in OUTAGES:
        site.store_away.set()
        time.sleep(seconds)
        site.store_away.clear()
        time.sleep(BETWEEN)
        assert site.record(night)["status"] in {"running", "completed"}
    check_night(site, night)
    assert {run["state"]["type"] for run in site.runs_of_models(night)} == {"COMPLETED"}
    assert ran(site.record(night)) == dict.fromkeys(NAMES, STAGES)
    check_next_night(site)


@pytest.mark.parametrize("between", [False, True], ids=["at work", "between attempts"])
def test_cancelled_after_the_server_was_away(site, between):
    """A run whose worker does not listen for cancellations any more ends by itself, and so does that of a model."""
    site.write_zoo(seconds=600, count=1)
    night = site.start_night()
    eventually((site.project.folder / "built").exists, 900)
    site.stop_server()
    time.sleep(AWAY)  # Prefect's worker gives up after 25 s
    site.start_server()
    (model,) = (run["id"] for run in site.runs_of_models(night, "RUNNING"))
    if between:  # two crashes fail the night's run, which waits to be tried again
        crash(site, night, "net00")
        eventually(lambda: site.run(night)["state"]["name"] == "AwaitingRetry", 300)
    ended = [night] if between else [model, night]
    for run in ended:
        site.entry("prefect", "flow-run", "cancel", run)
    for run in ended:
        eventually(lambda run=run: site.run(run)["state"]["type"] == "CANCELLED", 120)
        eventually(lambda run=run: not any(run in worker.runs() for worker in site.workers.values()), 60)
    assert site.built()["net00"] == 1 or between
    assert site.record(night)["status"] in {"failed", "interrupted"}  # it may see the end of the model's run first


def crash(site: Site, night: str, model: str) -> None:
    """Kills the run of a model, and the one that takes its place: then the model has failed."""
    killed = set[str]()

    def process() -> Any:
        mine = {run["id"] for run in site.runs_of_models(night, "RUNNING") if run["parameters"]["models"] == model}
        alive = {run: found for worker in site.workers.values() for run, found in worker.runs().items()}
        return next(((run, alive[run]) for run in mine - killed if run in alive), None)

    for _ in range(2):
        run, first = eventually(process, 300)
        first.kill()
        killed.add(run)


def test_model_is_cancelled(site):
    """The others go on, and a retry that another failure causes leaves the model out."""
    site.write_zoo(seconds=SECONDS, slow={"net00": 600, "net01": 30})
    night = site.start_night()
    eventually((site.project.folder / "built").exists)
    eventually(lambda: "net00" in site.built())
    (cancelled,) = (run["id"] for run in site.runs_of_models(night) if run["parameters"]["models"] == "net00")
    site.entry("prefect", "flow-run", "cancel", cancelled)
    crash(site, night, "net01")
    eventually(lambda: site.run(night)["state"]["name"] == "AwaitingRetry", 600)
    state = site.wait_for(night)
    assert state["type"] == "FAILED", state
    assert "1 of the files were not made: its run 'export zoo.yaml net00' was cancelled" in state["message"]
    assert site.run(night)["run_count"] == 2
    assert site.files() == NAMES[1:]
    assert site.built()["net00"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_disk_is_full(site):
    """A machine whose disk is full fails models, and the run is recorded and tried again: then there is room."""
    cache = site.project.folder / "four" / "cache"
    cache.mkdir(parents=True)
    for worker in site.workers.values():
        worker.kill()
    site.workers.clear()
    with small_disk(cache, 128 << 10) as enlarge:
        site.start_worker("four", 4)
        night = site.start_night()
        eventually(lambda: site.run(night)["state"]["name"] == "AwaitingRetry", 600)
        assert site.record(night)["status"] == "failed"
        enlarge()
        check_night(site, night, twice=set(NAMES))
        check_next_night(site)
        site.workers["four"].kill()


def test_no_worker_takes_models(project):
    """Workers that take one run at a time are all busy with zoos' runs: these lower their models themselves."""
    with run_site(project, {"one": 1, "two": 1}) as site:
        site.write_zoo(name="other.yaml")
        site.deploy("--on", "pool", zoo="other.yaml", name="other")
        site.write_zoo()
        nights = [site.start_night(), site.start_night("other")]
        for night in nights:
            state = site.wait_for(night)
            assert state["type"] == "COMPLETED", state
        for worker in site.workers.values():
            assert "has taken no model for 60 s (workers online: 2" in worker.log.read_text()
        assert site.built() == dict.fromkeys(NAMES, 1)  # of equal models, in both zoos
        assert not site.unfinished()


def test_two_nights_by_cron(site):
    """The server's scheduler starts runs, and a worker takes them, without anybody's help; one each time."""
    for night in range(2):
        begin = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=2)
        site.deploy("--on", "pool", "--cron", f"{begin.minute} {begin.hour} * * *", "--timezone", "UTC")
        run = eventually(lambda begin=begin: scheduled(site, begin), 300)
        state = site.wait_for(run["id"])
        assert state["type"] == "COMPLETED", state
        assert (state["name"] == "Cached") == (night == 1)
    assert site.files() == NAMES
    assert site.built() == dict.fromkeys(NAMES, 1)


def ran(record: Any) -> dict[str, int]:
    """Number of stages that ran, by model, without those where none did."""
    return {name: counts["ran"] for name, counts in record["models"].items() if counts.get("ran")}


def test_two_nights(site):
    """A machine that dies costs what it was doing. The next night runs what has changed, and says what that was."""
    night = site.start_night()
    assert site.wait_for(night, models=2)["type"] == "RUNNING"
    victim = next(worker for worker in site.workers.values() if night not in worker.runs())
    lost = set(eventually(victim.runs))
    victim.kill()
    state = site.wait_for(night)
    assert state["type"] == "COMPLETED", state
    assert f"{MODELS} files verified" in state["message"]
    assert len(site.files()) == MODELS

    ended = site.runs_of_models(night)
    assert "nothing is published" not in "".join(worker.log.read_text() for worker in site.workers.values())
    assert len(site.read("artifacts/filter", artifacts={"key": {"any_": ["zoo-zoo"]}})) == 1
    crashed = {run["parameters"]["models"] for run in ended if run["state"]["type"] == "CRASHED"}
    assert crashed <= {run["parameters"]["models"] for run in ended if run["id"] in lost}
    counts = {name: Counter(found) for name, found in site.record(night)["models"].items()}
    assert {name: count["ran"] + count["cached"] for name, count in counts.items()} == dict.fromkeys(counts, STAGES)
    assert {name for name, count in counts.items() if count["cached"]} <= crashed
    built = site.built()
    assert len(built) == MODELS
    assert {name for name, count in built.items() if count > 1} <= crashed

    before = site.project.folder / "before"
    shutil.copytree(site.project.out, before)
    site.write_zoo({"net05": 100}, seconds=SECONDS)
    second = site.start_night()
    state = site.wait_for(second)
    assert state["type"] == "COMPLETED", state
    assert set(ran(site.record(second))) == {"net05"}
    assert len(site.releases()["releases"]) == 2
    compared = json.loads(site.entry("pteforge", "diff", str(before), str(site.project.out), "--json"))
    assert [file["name"] for file in compared["files"] if file["status"] != "equal"] == ["net05/portable-fp32"]
    page = (site.project.out / "index.html").read_text()
    assert "net05" in page


def scheduled(site: Site, begin: datetime) -> dict[str, object] | None:
    """The run of the deployment that was scheduled by itself for that time, once it has started."""
    runs = site.read("flow_runs/filter", flow_runs={"tags": {"all_": ["auto-scheduled"]}})
    started = [run for run in runs if run["state"]["type"] in (*FINAL, "RUNNING")]
    return next((run for run in started if datetime.fromisoformat(run["expected_start_time"]) == begin), None)
