"""Weights pass between workers and the store, never through the process that runs the flow."""

from __future__ import annotations

import threading

import psutil
import pytest

_WIDTH = 1 << 22  # rows of 4, 1 and 3 numbers of 4 bytes each: 134 MB of weights
_WEIGHTS = _WIDTH * (4 + 1 + 3) * 4


def peak(project, folder, *models):
    """Peak resident memory of the flow's process, in bytes."""
    wanted = [part for model in models for part in ("--model", model)]
    process = project.start(
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
def test_weights_do_not_pass_through_the_flow(project, tmp_path):
    """With 134 MB of weights the flow's process takes less than half of that more than with a few bytes."""
    large = {"builder": "nets:linear", "kwargs": {"width": _WIDTH}}
    project.write_zoo({"small": "nets:linear", "large": {"source": large}}, ("xnnpack-fp32",))
    sizes = {model: peak(project, tmp_path / model, model) for model in ("small", "large")}
    assert (tmp_path / "large" / "out" / "large" / "xnnpack-fp32.pte").stat().st_size > _WEIGHTS
    assert sizes["large"] - sizes["small"] < _WEIGHTS / 2  # what a run takes varies by some 30 MB
