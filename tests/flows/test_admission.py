"""Stages of a zoo wait for the memory that they will probably need."""

from __future__ import annotations

import asyncio
import time

import pytest
from pteforge.artifacts.store import open_store
from pteforge.configs.load import load_zoo
from pteforge.configs.zoo import RunConfig
from pteforge.flows.run.request import ExportRequest
from pteforge.flows.run.select import select_models
from pteforge.flows.run.session import NullZooObserver, Session, stage_memory
from pteforge.flows.run.zoo import lower_rest
from pteforge.tasks.engine.executor import Executor
from pteforge.tasks.engine.runner import LocalRunner
from pteforge.tasks.engine.workers import Workers, memory_for_calls


class Watch(NullZooObserver):
    """Notes when each stage starts."""

    def __init__(self):
        self.starts = {}

    def started(self, call):
        self.starts[call.slot] = time.monotonic()


@pytest.mark.slow
def test_large_stages_run_one_after_another(warm):
    """Two exports that together took more than there is do not run at once, although cores are free.

    The record of the run has what each was expected to take, which is what it took the last time, and what it took.
    """
    chosen = select_models(load_zoo(warm.folder / "zoo.yaml"), "*", "portable*")
    exports = {f"{model.name}/export" for model in chosen}
    with open_store(str(warm.store)) as store:
        past = {slot: store.ledger.last_run(slot).peak_memory for slot in exports}
        with Workers(jobs=4, memory=sum(past.values()) - 1) as workers:
            warm.edit("nets.py", "def conv", "EDITED = 1\n\n\ndef conv")
            executor, asked = Executor(store, workers), ExportRequest(zoo=warm.folder / "zoo.yaml", out=warm.out)
            session = Session("zoo", chosen, executor, workers, asked, 4)
            session.observer = watch = Watch()
            asyncio.run(lower_rest(session, LocalRunner(executor, 8, session)))
    assert session.outcome().exit_code == 0
    stages = {stage.slot: stage for model in session.outcomes.values() for stage in model.stages}
    for slot in exports:
        assert stages[slot].predicted_memory == past[slot]
        assert stages[slot].peak_memory > 0
    first, second = sorted(exports, key=watch.starts.__getitem__)
    assert watch.starts[second] - watch.starts[first] >= stages[first].seconds
    assert stages[second].queued > 0


def test_processes_of_this_machine_share_its_memory():
    """A cluster that the run starts divides the machine's memory; one that runs already has it on each machine."""
    assert stage_memory(RunConfig()) == memory_for_calls()
    assert stage_memory(RunConfig(on="dask", workers=4, memory=2**30)) == 2**28
    assert stage_memory(RunConfig(on="dask", workers=4)) == memory_for_calls() // 4
    assert stage_memory(RunConfig(on="dask", address="tcp://a:1", memory=2**30)) == 2**30
    assert stage_memory(RunConfig(on="pool", pool="forge")) is None
