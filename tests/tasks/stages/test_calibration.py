"""calibration: samples come from the user's dataset, one after another, and count by what they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pteforge.artifacts.programs.values import load_values
from pteforge.errors import SourceError
from pteforge.tasks.catalog import StageName
from pteforge.tasks.source_params import CalibrationParams
from pteforge.tasks.stage import Workspace

RECIPE = {
    "quantize": {"quantizer": "xnnpack"},
    "specializations": [{"target": "xnnpack"}],
    "verify": {"min_sqnr_db": None},
}


def samples_of(stages, dataset, samples=128, **kwargs):
    """What the stage gives for a dataset."""
    params = CalibrationParams(source={"builder": f"chain_models:{dataset}", "kwargs": kwargs}, seed=0, samples=samples)
    return stages.run(StageName.CALIBRATION, params)["samples"]


def test_samples_in_order(stages):
    """Callables and iterables give samples; a sample that is no tuple is the only input."""
    import torch

    given = list(load_values(samples_of(stages, "BATCHES"), stages.store))
    assert [[tensor.shape for tensor in flat] for flat in given] == [[torch.Size([2, 4])], [torch.Size([5, 4])]]
    assert len(list(load_values(samples_of(stages, "batches", count=7), stages.store))) == 7


def test_the_cap(stages):
    """No more samples are taken than asked for, also of a dataset that would fail later."""
    assert len(list(load_values(samples_of(stages, "batches", samples=3, count=10**9), stages.store))) == 3
    assert len(list(load_values(samples_of(stages, "raising_batches", samples=1), stages.store))) == 1


@pytest.mark.parametrize(
    ("dataset", "cap", "told"),
    [("BATCHES", 9, [(1, 2), (2, 2)]), ("BATCHES", 1, [(1, 1)]), ("batches", 2, [(1, None), (2, None)])],
)
def test_samples_are_counted(stages, tmp_path, monkeypatch, dataset, cap, told):
    """Each sample is told of once it is stored, with how many there will be where the dataset says that."""
    from pteforge.tasks.stages import calibration

    monkeypatch.chdir(tmp_path)
    heard = []
    params = CalibrationParams(source={"builder": f"chain_models:{dataset}", "kwargs": {}}, seed=0, samples=cap)
    work = Workspace(stages.store, tmp_path, tmp_path, progressed=lambda *each: heard.append(each))
    calibration.run({}, params, work)
    assert heard == told


def test_the_same_samples_are_the_same_artifact(stages):
    """Random samples are seeded; other samples are another artifact."""
    assert samples_of(stages, "batches") == samples_of(stages, "batches")
    assert samples_of(stages, "batches", scale=2.0) != samples_of(stages, "batches")


@pytest.mark.parametrize(
    ("dataset", "kwargs", "message"),
    [
        ("batches", {"count": 0}, "gives no sample"),
        ("raising_batches", {}, "failed: ValueError: the disk is full"),
        ("batches", {"colour": 1}, "failed: TypeError: .*colour"),
        ("missing", {}, "failed: AttributeError: "),
    ],
)
def test_datasets_that_cannot_be_used(dataset, kwargs, message, stages):
    """What is wrong with a dataset is said with its name."""
    with pytest.raises(SourceError, match=f"dataset chain_models:{dataset} {message}"):
        samples_of(stages, dataset, **kwargs)


def test_quantizers_see_the_samples(stages):
    """Scales are those of the dataset and not of the examples: other samples, another file."""
    files = {
        scale: stages.lower(
            "chain_models:mlp",
            RECIPE,
            calibration={"forward": {"dataset": "chain_models:batches", "kwargs": {"scale": scale}}},
        ).file
        for scale in (1.0, 50.0)
    }
    assert files[1.0] != files[50.0]


def test_samples_that_do_not_fit(stages):
    """A sample of another shape than the model takes is named, before anything is lowered."""
    calibration = {"forward": {"dataset": "chain_models:batches", "kwargs": {"width": 5}}}
    with pytest.raises(SourceError, match="calibration sample 0: input 0"):
        stages.lower("chain_models:mlp", RECIPE, calibration=calibration)


def test_unknown_method(stages):
    """A dataset for a method that the model does not have is an error."""
    with pytest.raises(SourceError, match=r"calibration names the methods \['encode'\]; the model has \['forward'\]"):
        stages.lower("chain_models:mlp", RECIPE, calibration={"encode": {"dataset": "chain_models:batches"}})


_PROGRAM = """
import resource, sys
from pathlib import Path
from pteforge.artifacts.local_store import LocalStore
from pteforge.tasks.params import QuantizeParams, TargetParams
from pteforge.tasks.source_params import CalibrationParams
from pteforge.tasks.stage import Workspace
from pteforge.tasks.stages import calibration, quantize
import torch
zoo, folder, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, str(zoo))
import chain_models
store = LocalStore.open(folder)
params = CalibrationParams(
    source={"builder": "chain_models:batches", "kwargs": {"count": count, "width": 65536}}, seed=0, samples=count
)
with store.scratch() as scratch:
    samples = calibration.run({}, params, Workspace(store, scratch, folder, (), None))["samples"]
program = torch.export.export(torch.nn.Linear(65536, 2).eval(), (torch.zeros(3, 65536),))
options = QuantizeParams(quantizers=(TargetParams(name="xnnpack", options={}),))
given = quantize.load_values(samples, store)
quantize.quantize(program, [torch.zeros(3, 65536)], given, options)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_samples(tmp_path):
    """Samples stream: ten times as many (750 MB in all) take no more memory."""
    zoo = Path(__file__).parent / "zoo"
    peaks = {}
    for count in (100, 1000):
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, zoo, tmp_path / str(count), str(count)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        peaks[count] = int(done.stdout.split()[-1]) * 1024
    assert peaks[1000] < peaks[100] + 64 * 2**20
