"""Eight processes lower one zoo into one store while gc runs, some of them stopped for a while or with wrong clocks."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from unittest import mock

import psutil
from pteforge.artifacts.gc import collect
from pteforge.artifacts.lease import LeaseTiming
from pteforge.artifacts.store import RemoteStore, Store, open_store
from pteforge.tasks.engine.workers import Workers
from pteforge.tests.contract.conftest import SIGNING_KEY, run_s3_server
from pteforge.tests.faults.campaign import Campaign, trying
from pteforge.tests.faults.crash import until
from pteforge.tests.faults.zoo import STAGES, Made, check_store, make_project
from pteforge.tests.flows.conftest import Project, lower_zoo

PROCESSES = 8
_HOSTS = 3  # with local copies of their own, where the store is a bucket
_LIMIT = 180.0  # seconds for all processes, on a busy machine
_IMPATIENT = LeaseTiming(heartbeat=0.5, expiry=4.0, poll=0.2)
_STOPPED = 6.0  # seconds: longer than the expiry
_HOUR = 3600
_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long shift(void) { const char *text = getenv("CLOCK_SHIFT"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t id, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, now);
    if (!code && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return code;
}
int gettimeofday(struct timeval *now, void *zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(now, zone);
    if (!code) now->tv_sec += shift();
    return code;
}
time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""


@dataclass
class Track:
    """What all races are run on.

    Attributes:
        made: by one process that had the store for itself.
        clock: a library that shifts the clock of a process by ``$CLOCK_SHIFT`` seconds.
        stack: closes the worker server and the S3 server.
        buckets: whether the S3 server runs, which this process and those that it starts have the address of.
    """

    project: Project
    made: Made
    address: str
    clock: Path
    stack: contextlib.ExitStack
    buckets: bool = False

    def new_bucket(self) -> str:
        """URL of a new store in the bucket."""
        if not self.buckets:
            bucket = self.stack.enter_context(run_s3_server())
            settings = {"PTEFORGE_SIGNING_KEY": SIGNING_KEY, "PTEFORGE_STORE_OPTIONS": json.dumps(bucket.options)}
            self.stack.enter_context(mock.patch.dict(os.environ, settings))
            self.buckets = True
        return f"s3://zoo/{uuid.uuid4().hex}"

    def close(self) -> None:
        self.stack.close()


@dataclass(frozen=True)
class Racer:
    """A process of a race, which is `main` of this module.

    Attributes:
        url: of the store.
        host: folder for what the processes of one machine share.
        address: of the worker server.
        collects: whether it collects garbage until its standard input ends, in place of lowering the zoo.
        impatient: whether leases expire within seconds.
    """

    folder: str
    url: str
    host: str
    address: str
    collects: bool
    impatient: bool

    def start(self, track: Track, shift: int) -> subprocess.Popen[str]:
        """Starts the process, with its clock shifted by so many seconds."""
        clock = {"LD_PRELOAD": str(track.clock), "CLOCK_SHIFT": str(shift)} if shift else {}
        return subprocess.Popen(
            [sys.executable, "-m", "pteforge.tests.faults.races", json.dumps(asdict(self))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | clock,
        )


def prepare(folder: Path) -> Track:
    """Lowers the zoo once in this process, with the worker server of all races."""
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(Workers(jobs=2))
        workers.start(shared=True)
        (folder / "clock.c").write_text(_CLOCK, encoding="utf-8")
        clock = folder / "clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", clock, folder / "clock.c", "-ldl"], check=True)
        project = make_project(folder / "project")
        blank = project.copy(folder / "blank")
        assert lower_zoo(project, workers).outcome.exit_code == 0
        with open_store(str(project.store)) as store:
            made = Made.of(project, store)
        assert workers.address
        return Track(blank, made, workers.address, clock, stack.pop_all())


def trial(track: Track, rng: random.Random, folder: Path) -> str:
    """One race, to its end."""
    place, fault = rng.choice(["folder", "bucket"]), rng.choice(["", ", a holder stopped", ", clocks an hour apart"])
    stops = "stopped" in fault
    kind = f"{place}{fault}"
    with trying(kind), contextlib.ExitStack() as stack:
        project = track.project.copy(folder / "project")
        url = str(project.store) if place == "folder" else track.new_bucket()
        racers = []
        for number in range(PROCESSES + 1):
            host = str(folder / f"host{number % _HOSTS}")
            racer = Racer(str(project.folder), url, host, track.address, number == PROCESSES, stops)
            shift = rng.choice([-_HOUR, 0, _HOUR]) if "clocks" in fault else 0
            racers.append(racer.start(track, shift))
            stack.callback(racers[-1].kill)
        stopped = stop_a_holder(racers[:-1], rng.random()) if stops else None
        said = [racer.communicate(timeout=_LIMIT) for racer in racers]
        for racer, (_, errors) in zip(racers, said, strict=True):
            assert racer.returncode == 0, errors
            assert "Traceback" not in errors, errors
        *ran, collections = [json.loads(out) for out, _ in said]
        assert collections > 0
        check_work(ran, racers.index(stopped) if stopped and place == "bucket" else None)
        with opened(url, folder / "host0") as store:
            check_store(store)
            assert not (differing := Made.of(project, store).differences(track.made)), differing
    return kind


def stop_a_holder(racers: list[subprocess.Popen[str]], choice: float) -> subprocess.Popen[str] | None:
    """Stops a process that holds a lease until the lease has expired, and continues it; None if none holds one."""
    holders: list[subprocess.Popen[str]] = []

    def found() -> bool:
        holders[:] = [racer for racer in racers if holds_a_lease(racer)]
        return bool(holders) or all(racer.poll() is not None for racer in racers)

    until(found)
    if not holders:
        return None
    stopped = holders[int(choice * len(holders))]
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(_STOPPED)
    stopped.send_signal(signal.SIGCONT)
    return stopped


def holds_a_lease(racer: subprocess.Popen[str]) -> bool:
    """Whether the process has a file of a lease open, which those that wait only have for a moment."""
    try:
        return any("/leases/" in file.path for file in psutil.Process(racer.pid).open_files())
    except psutil.Error:
        return False


def check_work(ran: list[list[str]], lost: int | None) -> None:
    """Each stage ran once; besides in the process `lost`, if that one may have lost a lease."""
    once = Counter(key for number, keys in enumerate(ran) if number != lost for key in keys)
    again = [key for key, times in once.items() if times > 1]
    assert not again, f"ran more than once: {again}"
    everything = {*once, *(ran[lost] if lost is not None else ())}
    assert len(everything) == STAGES, sorted(everything)


def opened(url: str, host: Path, timing: LeaseTiming | None = None) -> Store:
    """The store as a host sees it."""
    return RemoteStore(url, host, timing=timing) if "://" in url else open_store(url)


def main() -> None:
    """Lowers the zoo and prints the keys of the stages that ran here; or collects, and prints how often."""
    racer = Racer(**json.loads(sys.argv[1]))
    store = opened(racer.url, Path(racer.host), _IMPATIENT if racer.impatient else None)
    if racer.collects:
        sys.stdout.write(json.dumps(collect_until_told(store)))
        return
    with Workers(jobs=1, address=racer.address) as workers:
        lowered = lower_zoo(Project(Path(racer.folder)), workers, store=store)
    if lowered.outcome.exit_code:
        sys.exit(str(lowered.outcome.failures))
    stages = [stage for model in lowered.stages.values() for stage in model]
    sys.stdout.write(json.dumps([stage.key for stage in stages if stage.status == "ran"]))


def collect_until_told(store: Store) -> int:
    """Collects, without a grace period, until standard input ends; returns how often."""
    for times in itertools.count(1):
        collect(store, keep_newer_than=timedelta(0))
        if select.select([sys.stdin], [], [], 0.05)[0]:
            return times
    raise AssertionError


RACES = Campaign("Races", prepare, trial, 60)

if __name__ == "__main__":
    main()
