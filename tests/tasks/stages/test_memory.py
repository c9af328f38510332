"""Stages that lower graphs: their memory does not grow with the weights."""

import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from pteforge.tasks.engine.workers.memory import own_memory
from pteforge.tasks.programs.payload import write_payload
from pteforge.tasks.verify.running import runnable_payloads
from pteforge.tasks.verify.scoring import loaded_predict
from pteforge.tests import lowering
from pteforge.tests.lowering import recipe

LAYERS = (2, 8)  # of 16 MiB each
BOUND = 40 << 20  # of the 96 MiB that are added
SLOW, NIGHTLY = pytest.mark.slow, pytest.mark.nightly
STAGES = ("edge", "partition", "preprocess", "compile", "pack", "serialize")
RECIPES = {
    "portable": recipe("portable"),
    "xnnpack": recipe("xnnpack"),
    "vulkan": recipe("vulkan", verify={"required": False}),
    "fat": recipe("xnnpack", "portable"),
    "weights apart": recipe("portable", output={"form": "plain", "external_data": True}),
}


@contextmanager
def watching(peaks: dict[str, int], name: str) -> Iterator[None]:
    """Adds the bytes of anonymous memory that this process takes in the context at most."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that was freed before would hide what is taken now
    before = peak = own_memory(os.getpid())
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, own_memory(os.getpid()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        peaks[name] = max(peaks.get(name, 0), peak - before)


@pytest.fixture
def peaks_of(stages, monkeypatch, tmp_path: Path):
    """By stage, the most memory that it takes for a model with so many layers."""
    run = lowering.run_stage

    def lower(made, layers):
        peaks: dict[str, int] = {}

        def watched(work):
            with watching(peaks, work["call"]["stage"]):
                return run(work)

        monkeypatch.setattr(lowering, "run_stage", watched)
        fresh = type(stages)(type(stages.store).open(tmp_path / f"store{layers}"), stages.folder)
        fresh.lower({"builder": "builders:wide", "kwargs": {"layers": layers}}, made)
        return peaks

    return lower


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW if name == "xnnpack" else NIGHTLY) for name in RECIPES])
def test_weights_are_never_in_memory_at_once(name, peaks_of):
    """Four times the layers take no more memory than a few of them."""
    few, many = (peaks_of(RECIPES[name], layers) for layers in LAYERS)
    stages = {*STAGES, "verify"} if name == "portable" else STAGES  # XNNPACK packs weights when it loads a file
    assert {stage for stage in stages if many.get(stage, 0) > few.get(stage, 0) + BOUND} == set()


@SLOW
def test_payloads_of_a_fat_file_run_one_after_another(stages, tmp_path):
    """None is in memory as a whole, but for what XNNPACK packs; that is free before the next one runs."""
    layers, peaks = 6, {}
    made = stages.lower({"builder": "builders:wide", "kwargs": {"layers": layers}}, RECIPES["fat"])
    write_payload(made.outputs["serialize"]["file"], made.store, file := tmp_path / "fat.pte")
    packed = []
    with watching(peaks, "run"):
        before = own_memory(os.getpid())
        for name, loadable in runnable_payloads(file, (), {}):
            predict = loaded_predict(loadable, name, {})
            predict(torch.ones(1, 2048))
            packed.append(own_memory(os.getpid()) - before)
            del predict
    assert max(packed) > (layers - 1) << 24  # what else the process frees meanwhile hides a part
    assert peaks["run"] < (layers << 24) + BOUND
