"""Stores and servers that are away, workers that die and code that is edited while a deployed zoo is lowered.

With PostgreSQL, Prefect's server, an S3 server and two workers: whatever happens in a night, it ends in a true state,
the night after it makes right files of all models, and no builder is called twice at once, or again without need.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pteforge.tests.faults.campaign import Campaign, trying
from pteforge.tests.flows.conftest import Project
from pteforge.tests.flows.server.conftest import eventually
from pteforge.tests.flows.server.site import FINAL, Site, run_site

_MODELS = 10
_SECONDS = 4.0  # of each builder
_WORKERS = {"one": 3, "two": 3}
_KINDS = {"store": 4, "server": 2, "worker": 2, "code": 2}
"""How often each is chosen, relative to the others."""
_LONGEST = {"store": 100.0, "server": 60.0, "worker": 20.0}  # seconds away
_MOMENT = 40.0  # seconds until the first thing happens, and between two
_ALONE = 0.25  # share of the trials in which each model has a flow run of its own
_REACHED = {"COMPLETED": {"completed"}, "FAILED": {"failed"}, "CRASHED": {"lost", "interrupted"}}
"""Prefect's state of a run, and what `pteforge runs` says of it."""


@dataclass
class Nights:
    """A site, and what is to be closed with it."""

    site: Site
    stack: contextlib.ExitStack

    def close(self) -> None:
        self.stack.close()


@dataclass
class Met:
    """What happened in a night.

    Attributes:
        value: what builders put into all weights of the models.
        lost: builders that may be called again: they were at work on a worker that died, or their code was edited.
        dead: whether the run of the zoo died with its worker.
    """

    value: float
    lost: set[str] = field(default_factory=set)
    dead: bool = False


def prepare(folder: Path) -> Nights:
    """Starts everything, and lowers the zoo once."""
    stack = contextlib.ExitStack()
    with contextlib.ExitStack() as starting:
        (folder / "project").mkdir()
        starting.enter_context(stack)
        site = stack.enter_context(run_site(Project(folder / "project"), _WORKERS))
        starting.pop_all()
    return Nights(site, stack)


def trial(nights: Nights, rng: random.Random, _folder: Path) -> str:
    """One night with one or two things that happen, and one without."""
    site = nights.site
    chosen = rng.choices([*_KINDS], [*_KINDS.values()], k=rng.choice((1, 1, 2)))
    kind = ", then ".join(chosen)
    with trying(kind):
        met = Met(value=rng.randrange(1, 1 << 20) / (1 << 20))
        write_value(site, met.value)
        alone = {} if rng.random() < _ALONE else {"weights": 0}
        site.write_zoo(seconds=_SECONDS, count=_MODELS, **alone)
        before = site.built() if (site.project.folder / "built").exists() else Counter()
        night = site.start_night()
        for fault in chosen:
            wait(site, night, rng.uniform(0.0, _MOMENT))
            disturb(site, night, fault, rng, met)
        if not met.dead:
            state = site.wait_for(night)
            assert state["type"] == "COMPLETED" or "code" in chosen, state
        second = site.start_night()
        state = site.wait_for(second)
        assert state["type"] == "COMPLETED", state
        check(site, [night, second], met)
        built = site.built() - before
        assert {name for name, count in built.items() if count > 1} <= met.lost, (built, met)
        assert len(built) == _MODELS, built
    return kind


def disturb(site: Site, night: str, kind: str, rng: random.Random, met: Met) -> None:
    """Lets one thing happen, and waits until it is over."""
    away = rng.uniform(5.0, _LONGEST.get(kind, 5.0))
    match kind:
        case "store":
            site.store_away.set()
            time.sleep(away)
            site.store_away.clear()
        case "server":
            site.stop_server()
            time.sleep(away)
            site.start_server()
        case "worker":
            name = rng.choice([*_WORKERS])
            runs = site.workers[name].runs()
            met.dead |= night in runs
            for run in runs.keys() - {night}:
                met.lost |= set(site.run(run)["parameters"]["models"].split(","))
            site.workers[name].kill()
            time.sleep(away)
            site.start_worker(name, _WORKERS[name])
        case "code":
            met.value += 1.0
            write_value(site, met.value)
            met.lost |= set(names())


def check(site: Site, runs: list[str], met: Met) -> None:
    """The files are right, every state is true, and nothing is left."""
    assert site.files() == names()
    values = {path.parent.name: value_of(path) for path in site.project.out.glob("*/portable-fp32.pte")}
    assert values == dict.fromkeys(names(), met.value), values
    assert not (site.project.folder / "twice").exists(), (site.project.folder / "twice").read_text()
    eventually(lambda: not site.unfinished())
    eventually(lambda: not any(worker.runs() for worker in site.workers.values()))
    listed = json.loads(site.entry("pteforge", "runs", "--json"))["runs"]
    recorded = {run["id"]: run["status"] for run in reversed(listed)}  # of the last attempt
    for run in runs:
        state = site.run(run)["state"]
        assert recorded[run.replace("-", "")] in _REACHED[state["type"]], (state, recorded)
    # Without its server, a worker cannot begin the runs that it has taken: they did crash, and others take their place.
    # If none takes any for a minute, the run of the zoo lowers the models itself.
    begun = [run for run in site.runs_of_models(runs[0]) if run["run_count"]]
    ended = Counter(run["state"]["type"] for run in begun)
    if not (met.lost or met.dead):
        assert set(ended) <= {"COMPLETED"}, ended


def names() -> list[str]:
    return [f"net{index:02}" for index in range(_MODELS)]


def wait(site: Site, night: str, seconds: float) -> None:
    """Waits for so long from when the night's run has begun, or until it has ended."""
    eventually(lambda: site.run(night)["state"]["type"] in ("RUNNING", *FINAL))
    end = time.monotonic() + seconds
    while time.monotonic() < end and site.run(night)["state"]["type"] not in FINAL:
        time.sleep(0.5)


def write_value(site: Site, value: float) -> None:
    site.project.write("values.py", f"VALUE = {value!r}\n")


def value_of(path: Path) -> float:
    """What a model returns for ones, which is four times each weight."""
    import torch
    from executorch.runtime import Runtime

    method: Any = Runtime.get().load_program(path).load_method("forward")
    (output,) = method.execute([torch.ones(1, 4)])
    (value,) = {float(element) / 4 for element in output.flatten()}
    return value


OUTAGES = Campaign("Outages", prepare, trial, 100)
