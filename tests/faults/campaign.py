"""Tests by fault: many random trials of one kind, each of which can be repeated alone."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Campaign:
    """One kind of test by fault: many random trials that start from the same thing.

    Attributes:
        name: of its rows in docs/internals/reliability.md, for example "Damage".
        prepare: makes, in a folder, what all trials start from. It is called once. If what it returns has a method
            `close`, that is called at the end.
        trial: one trial, in an empty folder of its own. Returns the sub-kind that was tried, for example
            "object truncated"; raises where a promise is broken.
        trials: how many the full campaign has.
    """

    name: str
    prepare: Callable[[Path], Any]
    trial: Callable[[Any, random.Random, Path], str]
    trials: int


@dataclass(frozen=True)
class Broken:
    """A trial in which a promise was broken.

    Attributes:
        kind: the sub-kind that was tried, as far as it is known (see `trying`).
    """

    index: int
    kind: str
    message: str


@dataclass
class Report:
    """What a campaign has tried, by sub-kind, and what was broken."""

    campaign: str
    seed: int
    tried: Counter[str] = field(default_factory=Counter)
    broken: list[Broken] = field(default_factory=list)
    seconds: float = 0.0


@contextlib.contextmanager
def trying(kind: str) -> Iterator[None]:
    """Names the sub-kind of a trial for the report, should it break something."""
    try:
        yield
    except Exception as error:
        error.add_note(kind)
        raise


class TookTooLongError(BaseException):
    """A trial hangs. Nobody catches this who expects errors of files or servers."""


@contextlib.contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Ends a trial that takes longer."""

    def give_up(*_: object) -> None:
        raise TookTooLongError

    before = signal.signal(signal.SIGUSR2, give_up)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR2))
    timer.start()
    try:
        yield
    except TookTooLongError as error:
        raise AssertionError(f"took more than {seconds:g} s") from error
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR2, before)


def run_campaign(
    campaign: Campaign, folder: Path, *, seed: int, trials: int, first: int = 0, deadline: float | None = None
) -> Report:
    """Runs trials with the numbers from `first`, in new folders under `folder`.

    A trial's random numbers depend on the seed, the campaign and its number only. At least one trial is run; after
    `deadline`, on the clock of `time.monotonic`, no further one starts.
    """
    report, start = Report(campaign.name, seed), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        prepared = campaign.prepare(_made(folder / "prepared"))
        if hasattr(prepared, "close"):
            stack.callback(prepared.close)
        for index in range(first, first + trials):
            if deadline is not None and index > first and time.monotonic() >= deadline:
                break
            with tempfile.TemporaryDirectory(dir=folder, prefix=f"{index}-", ignore_cleanup_errors=True) as room:
                _try(campaign, prepared, index, Path(room), report)
    report.seconds = time.monotonic() - start
    return report


def run_in_parallel(
    campaign: Campaign,
    folder: Path,
    *,
    jobs: int,
    seed: int,
    trials: int,
    first: int = 0,
    deadline: float | None = None,
) -> Report:
    """As `run_campaign`, with the trials shared among processes, each of which prepares for itself."""
    if jobs == 1:
        return run_campaign(campaign, folder, seed=seed, trials=trials, first=first, deadline=deadline)
    share, report = -(-trials // jobs), Report(campaign.name, seed)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        parts = [
            pool.submit(
                run_campaign,
                campaign,
                folder / f"{begin}",
                seed=seed,
                trials=min(share, first + trials - begin),
                first=begin,
                deadline=deadline,
            )
            for begin in range(first, first + trials, share)
        ]
    for part in parts:
        report.tried += part.result().tried
        report.broken += part.result().broken
        report.seconds = max(report.seconds, part.result().seconds)
    return report


def _try(campaign: Campaign, prepared: Any, index: int, folder: Path, report: Report) -> None:
    try:
        kind = campaign.trial(prepared, random.Random(f"{report.seed}/{campaign.name}/{index}"), folder)  # noqa: S311
    except Exception as error:  # noqa: BLE001 - an exception that nobody expects breaks a promise, too
        kind = next(iter(getattr(error, "__notes__", ())), "")
        report.broken.append(Broken(index, kind, "".join(traceback.format_exception(error)).strip()))
    report.tried[kind] += 1


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
