"""Disks and buckets that fail at 1 to 90 % of calls: a run makes the right files or says why not, and loses nothing."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import random
import shutil
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
from pteforge.artifacts import lease, remote_files
from pteforge.artifacts.gc import collect
from pteforge.artifacts.lease import LeaseTiming
from pteforge.errors import PteforgeError
from pteforge.flows.run.outcome import ZooOutcome
from pteforge.tasks.results.delivered import Failure
from pteforge.tests.conftest import limited_size
from pteforge.tests.contract.conftest import Bucket as Server
from pteforge.tests.contract.conftest import run_s3_server
from pteforge.tests.faults import faulty_bucket, faulty_files
from pteforge.tests.faults.campaign import Campaign, patience, trying
from pteforge.tests.faults.faulty_bucket import Bucket
from pteforge.tests.faults.faulty_files import Disk, as_another_user, can_mount, small_disk
from pteforge.tests.faults.zoo import Made, SmallZoo, check_store, lower_small_zoo
from pteforge.tests.faulty_proxy import HTTP_FAULTS, Proxy, run_proxy

_LIMIT = 120  # seconds that a trial may take
_TIMING = LeaseTiming(heartbeat=0.5, expiry=1.5, poll=0.1)
_RATES = (0.01, 0.9)
_IMPATIENT = {"read_timeout": 0.3, "connect_timeout": 0.3, "retries": {"max_attempts": 0}}
_TROUBLE = {"stall": 6}
_TROUBLE_AT_MOST = 40  # calls that a server spoils before it recovers, so that a trial ends in seconds
_DISK_OF_A_ZOO = 2 << 20  # bytes; a store of the zoo needs less
_LONGEST = 8 << 10  # bytes
_NOBODY = 65534


@dataclass
class Ready:
    """What all trials start from.

    Attributes:
        zoo: lowered, in a local store and in a folder that stands for a bucket.
        made: what it has.
        mounts: whether disks can be mounted.
    """

    zoo: SmallZoo
    made: Made
    mounts: bool
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    server: Servers | None = None

    @classmethod
    def of(cls, zoo: SmallZoo) -> Ready:
        """Lowers the zoo in a local store, too."""
        local = {"PTEFORGE_STORE": str(zoo.store)}
        outcome = zoo.lower(local)
        assert outcome.exit_code == 0, outcome.failures
        with zoo.opened(local) as store:
            return cls(zoo, Made.of(zoo, store), can_mount(zoo.folder / "bucket" / "zoo"))

    def servers(self) -> Servers:
        """The S3 server with the lowered zoo, and the proxy before it; both run from now on."""
        if self.server is None:
            bucket = self.stack.enter_context(run_s3_server())
            self.server = Servers(bucket)
            self.server.proxy = self.stack.enter_context(run_proxy(Proxy(bucket.endpoint, self.server.choose)))
            self.server.fill(self.zoo)
        return self.server

    def close(self) -> None:
        self.stack.close()


@dataclass
class Servers:
    """An S3 server, and a proxy that spoils calls.

    Attributes:
        fault: one of `HTTP_FAULTS`.
        left: calls that will be spoilt at most.
    """

    bucket: Server
    proxy: str = ""
    fault: str = ""
    rate: float = 0.0
    left: int = 0
    rng: random.Random = field(default_factory=random.Random)

    def choose(self, _method: str, _target: str) -> str:
        if self.left <= 0 or self.rng.random() >= self.rate:
            return ""
        self.left -= 1
        return self.fault

    def fill(self, zoo: SmallZoo) -> None:
        """Puts the store of a bucket of folders into the bucket, as `whole`."""
        self.files.put(f"{zoo.shared}/", "zoo/whole/", recursive=True)

    @property
    def files(self) -> Any:
        return fsspec.filesystem("s3", **self.bucket.options)

    def environment(self, prefix: str, *, spoilt: bool) -> dict[str, str]:
        options = dict(self.bucket.options)
        if spoilt:
            options |= {"client_kwargs": {"endpoint_url": self.proxy}, "config_kwargs": _IMPATIENT}
        return {"PTEFORGE_STORE": f"s3://zoo/{prefix}", "PTEFORGE_STORE_OPTIONS": json.dumps(options)}


def prepare(folder: Path) -> Ready:
    return Ready.of(lower_small_zoo(folder / "zoo"))


@dataclass(frozen=True)
class Trial:
    """A copy of the zoo, and the store that it is lowered into.

    Attributes:
        place: "folder", "bucket of files" or "S3".
        environment: of the store.
    """

    ready: Ready
    rng: random.Random
    zoo: SmallZoo
    place: str
    environment: Mapping[str, str]

    @classmethod
    def at(cls, place: str, ready: Ready, rng: random.Random, folder: Path) -> Trial:
        """With everything in the store, with some of the stages, or with an empty store."""
        cold = rng.random() < 0.3
        zoo = SmallZoo(folder / "zoo")
        shutil.copytree(ready.zoo.folder, zoo.folder, ignore=_left_out(place, cold))
        environment = {"PTEFORGE_STORE": str(zoo.store)} if place == "folder" else {}
        if place == "S3":
            servers, prefix = ready.servers(), uuid.UUID(int=rng.getrandbits(128)).hex
            if not cold:
                servers.files.copy("zoo/whole/", f"zoo/{prefix}/", recursive=True)
            environment = servers.environment(prefix, spoilt=False)
        trial = cls(ready, rng, zoo, place, environment)
        trial.forget_some()
        return trial

    def forget_some(self) -> None:
        """Drops some records, local copies and results, as if they had never been there."""
        share = self.rng.choice([0.0, 0.3, 1.0])
        with self.zoo.opened(self.environment) as store:
            keys = sorted(record.key for record in store.ledger)
            if forgotten := [key for key in keys if self.rng.random() < share]:
                store.ledger.forget(*forgotten)
        if self.place != "folder" and self.rng.random() < 0.5:
            shutil.rmtree(self.zoo.folder / "cache")
        share = self.rng.choice([0.3, 1.0])
        for path in sorted(self.zoo.out.rglob("*.*")):
            if self.rng.random() < share:
                path.unlink()

    def ask(self, more: Mapping[str, str] | None = None) -> ZooOutcome | PteforgeError:
        """Lowers the zoo; whatever goes wrong is told by an error of ours."""
        told: list[Exception] = []

        def failure_of(step: str, error: Exception) -> Failure:
            told.append(error)
            return _failure_of(step, error)

        with mock.patch.object(Failure, "of", failure_of):
            try:
                outcome: ZooOutcome | PteforgeError = self.zoo.lower({**self.environment, **(more or {})})
            except PteforgeError as error:
                outcome = error
        for error in told:
            assert isinstance(error, PteforgeError), "".join(traceback.format_exception(error))
        return outcome

    def check_results(self, outcome: ZooOutcome | PteforgeError) -> None:
        """A run that succeeded has made everything, and whatever there is among the results is right."""
        found, right = self.zoo.files(), self.ready.made.files
        if isinstance(outcome, ZooOutcome) and outcome.exit_code == 0:
            assert not (missing := right.keys() - found.keys()), missing
        for name, content in found.items():
            if name.endswith(".json") and not (self.zoo.out / name).with_suffix(".pte").exists():
                assert json.loads(content)  # it names the run, which only those of whole results are compared without
            elif not name.endswith(".part"):  # what failed while it was written
                assert name in right, f"{name} is not one of {sorted(right)}"
                assert content == right[name] or _without_figures(content) == _without_figures(right[name]), (
                    f"{name} differs{_fields(content, right[name])}"
                )

    def succeed(self, more: Mapping[str, str] | None = None) -> None:
        outcome = self.ask(more)
        assert isinstance(outcome, ZooOutcome), outcome
        assert outcome.exit_code == 0, outcome.failures
        self.check_results(outcome)

    def tidy_up(self) -> None:
        """Collects garbage in the store while it fails."""
        with contextlib.suppress(PteforgeError), self.zoo.opened(self.environment) as store:
            collect(store, keep_newer_than=timedelta(0))

    def check(self) -> None:
        """No file is open and no lock held; the same is asked again, here and by another host, and all is right."""
        gc.collect()
        assert not (held := open_below(self.zoo.folder)), held
        self.succeed()
        if self.place != "folder":
            shutil.rmtree(self.zoo.out)
            self.succeed({"PTEFORGE_CACHE": str(self.zoo.folder / "another")})
        assert not (held := open_below(self.zoo.folder)), held
        with self.zoo.opened(self.environment) as store:
            assert not (differing := Made.of(self.zoo, store).differences(self.ready.made)), differing
            # A lease that could not be released delays `gc` for a day.
            with mock.patch.object(lease, "_ABANDONED", 0.0):
                check_store(store)
        assert not (left := sorted(self.zoo.out.rglob("*.part"))), left


_failure_of = Failure.of


def _left_out(place: str, cold: bool) -> Callable[[str, list[str]], set[str]]:
    """What is not copied: stores that the trial does not use."""
    unused = {"folder": {"bucket", "cache"}, "bucket of files": {"store"}, "S3": {"bucket", "store", "cache"}}[place]
    unused = unused | ({"bucket", "store", "cache"} if cold else set()) | {"__pycache__"}
    return lambda folder, names: unused.intersection(names) if Path(folder).name == "zoo" else set()


def open_below(folder: Path) -> list[str]:
    """Files below a folder that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(link))  # noqa: PTH115 - it may name what is no path
    return [name for name in found if name.startswith(f"{folder}/")]


def trial(ready: Ready, rng: random.Random, folder: Path) -> str:
    """One run on storage of one kind that fails in one way, and another one when it works again."""
    place, fault = rng.choice([(place, fault) for place, faults in _FAULTS.items() for fault in faults])
    rate = math.exp(rng.uniform(*map(math.log, _RATES)))
    kind = f"{place}: {fault}"
    with trying(kind), patience(_LIMIT), _impatient():
        where = {"local copies": "bucket of files", "results": rng.choice(["folder", "bucket of files"])}
        run = Trial.at(where.get(place, place), ready, rng, folder)
        outcome = _FAULTS[place][fault](run, place, fault, rate)
        if fault == faulty_files.SHORT:
            assert isinstance(outcome, ZooOutcome), outcome
            assert outcome.exit_code == 0, outcome.failures
        run.check_results(outcome)
        run.check()
    return kind


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Leases of dead holders expire in seconds."""
    with (
        mock.patch.object(lease, "LeaseTiming", return_value=_TIMING),
        mock.patch.object(remote_files, "PATIENCE", 2.0),
        mock.patch.object(remote_files, "_OUTAGE", 5.0),
    ):
        yield


def _on_disk(run: Trial, place: str, fault: str, rate: float) -> ZooOutcome | PteforgeError:
    """Calls on files fail in this process."""
    folders = {"folder": "store", "local copies": "cache", "results": "out"}
    disk = Disk(fault, (str(run.zoo.folder / folders[place]),), rate, run.rng)
    with faulty_files.failing(disk):
        outcome = run.ask()
        if run.rng.random() < 0.5:
            run.tidy_up()
    return outcome


def _in_bucket(run: Trial, _place: str, fault: str, rate: float) -> ZooOutcome | PteforgeError:
    """Calls on the bucket are answered late, or done in another way."""
    with faulty_bucket.failing(Bucket(fault, rate, run.rng)):
        outcome = run.ask()
        if run.rng.random() < 0.5:
            run.tidy_up()
    return outcome


def _behind_proxy(run: Trial, _place: str, fault: str, rate: float) -> ZooOutcome | PteforgeError:
    """Calls on the S3 server are spoilt."""
    servers = run.ready.servers()
    prefix = run.environment["PTEFORGE_STORE"].rpartition("/")[2]
    servers.fault, servers.rate, servers.rng = fault, rate, run.rng
    servers.left = _TROUBLE.get(fault, _TROUBLE_AT_MOST)
    spoilt = replace(run, environment=servers.environment(prefix, spoilt=True))
    try:
        outcome = spoilt.ask()
        if run.rng.random() < 0.3:
            spoilt.tidy_up()
    finally:
        servers.left = 0
    return outcome


def _full_disk(run: Trial, _place: str, _fault: str, _rate: float) -> ZooOutcome | PteforgeError:
    """The store is on a disk that becomes full, at any point; without the right to mount one, files have a limit."""
    if not run.ready.mounts:
        return _short_files(run, _place, _fault, _rate)
    store = run.zoo.store
    there = sum(path.stat().st_blocks * 512 for path in store.rglob("*")) if store.exists() else 0
    moved = store.rename(run.zoo.folder / "moved") if store.exists() else None
    store.mkdir(mode=0o700)
    with small_disk(store, there + (1 << 16) + run.rng.randrange(_DISK_OF_A_ZOO)) as enlarge:
        if moved:
            shutil.copytree(moved, store, dirs_exist_ok=True)
        outcome = run.ask()
        run.tidy_up()
        enlarge()
        run.check()
    return outcome


def _short_files(run: Trial, _place: str, _fault: str, _rate: float) -> ZooOutcome | PteforgeError:
    """No file can be longer than so many bytes: writes are short, and then fail."""
    with limited_size(run.rng.randrange(_LONGEST)):
        return run.ask()


def _permissions_lost(run: Trial, place: str, _fault: str, rate: float) -> ZooOutcome | PteforgeError:
    """Some files and folders of the store have other modes, and whoever runs is not root."""
    paths = [path for path in _below(run.zoo, place) if run.rng.random() < rate]
    before = {path: path.stat().st_mode for path in paths}
    for path in reversed(paths):
        path.chmod(run.rng.choice([0o000, 0o400, 0o500, 0o200]))
    try:
        outcome = as_another_user(run.ask)
        as_another_user(run.tidy_up)
    finally:
        for path, mode in before.items():
            if path.exists():
                path.chmod(mode)
    return outcome


def _anothers(run: Trial, place: str, fault: str, rate: float) -> ZooOutcome | PteforgeError:
    """Some files and folders of the store belong to another user; if this is not root, they lose their modes."""
    if os.geteuid():
        return _permissions_lost(run, place, fault, rate)
    paths = [path for path in _below(run.zoo, place) if run.rng.random() < rate]
    for path in paths:
        os.chown(path, _NOBODY, _NOBODY)
    try:
        outcome = as_another_user(run.ask)
        as_another_user(run.tidy_up)
    finally:
        for path in paths:
            if path.exists():
                os.chown(path, 0, 0)
    return outcome


def _below(zoo: SmallZoo, place: str) -> list[Path]:
    """The folder of the store, and what is in it; folders come before what they have."""
    top = {"folder": zoo.store, "local copies": zoo.folder / "cache", "results": zoo.out}[place]
    return [top, *sorted(top.rglob("*"))] if top.exists() else []


_Fault = Callable[[Trial, str, str, float], ZooOutcome | PteforgeError]

_OF_DISKS: dict[str, _Fault] = {
    **dict.fromkeys(faulty_files.FAULTS, _on_disk),
    "permissions lost": _permissions_lost,
}
_FAULTS: dict[str, dict[str, _Fault]] = {
    "folder": {**_OF_DISKS, "disk full": _full_disk, "files limited": _short_files, "another user's": _anothers},
    "local copies": _OF_DISKS,
    "results": _OF_DISKS,
    "bucket of files": dict.fromkeys(faulty_bucket.FAULTS, _in_bucket),
    "S3": dict.fromkeys(HTTP_FAULTS, _behind_proxy),
}


def _without_figures(content: bytes) -> Any:
    """A provenance without what eager was compared with, whose last bits depend on where its tensors are in memory."""
    try:
        provenance = json.loads(content)
        del provenance["findings"]["figures"], provenance["artifacts"]["findings/figures//"]
    except (ValueError, KeyError):
        return content
    return provenance


def _fields(content: bytes, right: bytes) -> str:
    """Which fields of a provenance differ, and how."""
    try:
        found, wanted = json.loads(content), json.loads(right)
    except ValueError:
        return ""
    differing = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    return f": {[(name, found.get(name), wanted.get(name)) for name in differing]}"


STORAGE = Campaign("Storage", prepare, trial, trials=2_000)
