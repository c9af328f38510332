"""Stage bodies in the calling process: what they raise is chained, and the caller's global state stays."""

import itertools
import os
import random
from pathlib import Path

import pytest
from pteforge.configs.model import Limits
from pteforge.errors import SourceError, StageCrashed, StageFailed
from pteforge.tasks.engine.workers import InProcess, WorkerCall, as_in_a_process

LIMITS = Limits(timeout=1, memory=1)


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "in_process_bodies.py").write_text(
        "import torch\n"
        "from pteforge.errors import SourceError, StageCrashed\n"
        "def refused(_): raise SourceError('no such model')\n"
        "def broken(_): raise KeyError('x')\n"
        "def crashed(_): raise StageCrashed('gone')\n"
        "def traced(widths):\n"
        "    with torch._subclasses.FakeTensorMode():\n"
        "        for width in range(*widths): torch.zeros(width).relu()\n"
        "    return torch._subclasses.FakeTensorMode.cache_info().size\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name, argument=None: InProcess().run(WorkerCall(f"in_process_bodies:{name}", argument, LIMITS))


def state(folder):
    """Changes what it can, and says what the rest is."""
    import numpy as np
    import torch

    os.chdir(folder)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - as below
    torch.manual_seed(1)
    modes = [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")]
    modes += [torch.backends.mkldnn.enabled]
    return [torch.get_num_threads(), str(torch.get_default_dtype()), *modes]


def numpy_state():
    """Of the global generator, which is the one that bodies seed."""
    import numpy as np

    return np.random.get_state()[1].tolist()  # noqa: NPY002 - as above


def test_state(tmp_path):
    """A body finds the state of a fresh process, whatever the caller's is, and leaves the caller's behind."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    libraries = torch.backends.mkldnn.set_flags(False)
    before = (random.getstate(), numpy_state(), torch.get_rng_state())
    folder = Path.cwd()
    try:
        with torch.inference_mode(), torch.autocast("cpu", enabled=True), as_in_a_process():
            found = state(tmp_path)
        assert (torch.get_num_threads(), torch.get_default_dtype()) == (2, torch.float64)
        assert not torch.backends.mkldnn.enabled
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)
        torch.backends.mkldnn.set_flags(*libraries)
    assert found == [1, "torch.float32", True, False, False, True]
    assert before[:2] == (random.getstate(), numpy_state())
    assert torch.equal(before[2], torch.get_rng_state())
    assert Path.cwd() == folder


def test_what_is_raised(run):
    """A failure has its cause, and says whether the input was bad; errors of stages come as they are."""
    with pytest.raises(StageFailed, match="SourceError: no such model") as caught:
        run("refused")
    assert caught.value.bad_input
    assert isinstance(caught.value.__cause__, SourceError)
    with pytest.raises(StageFailed, match="KeyError: 'x'") as caught:
        run("broken")
    assert not caught.value.bad_input
    with pytest.raises(StageCrashed, match="gone"):
        run("crashed")


def test_memory_of_shapes_is_bounded(run, monkeypatch):
    """What torch remembers of each shape does not grow with the number of models that one process lowers."""
    monkeypatch.setattr("pteforge.tasks.engine.workers.entry._REMEMBERED_CALLS", 50)
    run("traced", [0, 1])  # forgets what other tests have left
    sizes = [run("traced", [start, start + 20]).result for start in range(1000, 2000, 20)]
    assert 50 < max(sizes) < 200
    assert sum(after < before for before, after in itertools.pairwise(sizes)) > 5
