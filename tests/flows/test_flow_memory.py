"""Weights go from worker to store and from store to worker, never through the process that runs the flow."""

from __future__ import annotations

import threading

import psutil
import pytest

_WIDTH = 1 << 22  # rows of 4, 1 and 3 numbers of 4 bytes each: 134 MB of weights
_WEIGHTS = _WIDTH * (4 + 1 + 3) * 4


def peak(room, folder, *models):
    """Greatest resident memory of the flow's own process while it lowers models of a room's zoo, in bytes."""
    wanted = [part for model in models for part in ("--model", model)]
    process = room.start(
        "export", "zoo.yaml", *wanted, "--store", str(folder / "store"), "--out", str(folder / "out"), "--jobs", "1"
    )
    seen = [0]

    def watch():
        status = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                seen.append(status.memory_info().rss)
            except psutil.Error:
                return
            done.wait(0.05)

    done = threading.Event()
    watching = threading.Thread(target=watch)
    watching.start()
    _, said = process.communicate(timeout=280)
    done.set()
    watching.join()
    assert process.returncode == 0, said
    return max(seen)


@pytest.mark.slow
def test_weights_do_not_go_through_the_flow(room, tmp_path):
    """134 MB of weights take the flow's process not half as much more memory than a model with a few bytes of them."""
    large = {"builder": "nets:linear", "kwargs": {"width": _WIDTH}}
    room.zoo({"small": "nets:linear", "large": {"source": large}}, ("xnnpack-fp32",))
    sizes = {model: peak(room, tmp_path / model, model) for model in ("small", "large")}
    assert (tmp_path / "large" / "out" / "large" / "xnnpack-fp32.pte").stat().st_size > _WEIGHTS
    assert sizes["large"] - sizes["small"] < _WEIGHTS / 2  # what a run takes varies by some 30 MB
