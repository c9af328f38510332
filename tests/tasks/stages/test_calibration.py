"""calibration: samples come from the user's dataset, one after another, and count by what they are."""

import subprocess
import sys

import pytest
import torch
from pteforge.errors import SourceError, VerificationFailed
from pteforge.tasks.engine.stage import Workspace
from pteforge.tasks.programs.values import load_values
from pteforge.tasks.quantize.stages.calibration import Calibration
from pteforge.tests.lowering import recipe

RECIPE = recipe("xnnpack", quantize={"quantizer": "xnnpack"}, verify={"min_sqnr_db": None})


def samples_of(stages, dataset, samples=128, **kwargs):
    """What the stage gives for a dataset."""
    params = Calibration.Params(source={"builder": f"callables:{dataset}", "kwargs": kwargs}, seed=0, samples=samples)
    return stages.run(Calibration, params)["samples"]


def test_samples_in_order(stages):
    """Callables and iterables give samples; a sample that is no tuple is the only input."""

    def shapes(dataset, **fields):
        samples = load_values(samples_of(stages, dataset, **fields), stages.store)
        return [tuple(tensor.shape) for (tensor,) in samples]

    assert shapes("BATCHES") == [(2, 4), (5, 4)]
    assert len(shapes("batches", count=7)) == 7
    assert len(shapes("batches", samples=3, count=10**9)) == 3
    assert len(shapes("raising_batches", samples=1)) == 1


def test_samples_that_are_drawn(stages):
    """A seed draws other samples than the first ones, the same each time; a dataset needs a length."""

    def drawn(dataset="numbered", **fields):
        source = {"builder": f"callables:{dataset}", "kwargs": {"count": 50}}
        samples = stages.run(Calibration, Calibration.Params(source=source, seed=0, samples=8, **fields))["samples"]
        return [int(tensor[0, 0]) for (tensor,) in load_values(samples, stages.store)]

    first, one, other = drawn(), drawn(shuffle=0), drawn(shuffle=1)
    assert first == list(range(8))
    assert len({*one}) == len({*other}) == 8
    assert one != other
    assert max(one + other) > 20
    assert drawn(shuffle=0) == one
    with pytest.raises(SourceError, match=r"callables:batches is generator.* no length"):
        drawn("batches", shuffle=0)


@pytest.mark.parametrize(
    ("dataset", "cap", "expected"),
    [("BATCHES", 9, [(1, 2), (2, 2)]), ("BATCHES", 1, [(1, 1)]), ("batches", 2, [(1, None), (2, None)])],
)
def test_samples_are_counted(stages, tmp_path, monkeypatch, dataset, cap, expected):
    """Progress is reported after each stored sample, with the total if the dataset has a length."""
    monkeypatch.chdir(tmp_path)
    heard = []
    params = Calibration.Params(source={"builder": f"callables:{dataset}", "kwargs": {}}, seed=0, samples=cap)
    work = Workspace(stages.store, tmp_path, tmp_path, progressed=lambda *progress: heard.append(progress))
    Calibration.run(Calibration.Inputs(), params, work)
    assert heard == expected


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
    """The error names the dataset and its problem."""
    with pytest.raises(SourceError, match=f"dataset callables:{dataset} {message}"):
        samples_of(stages, dataset, **kwargs)


@pytest.mark.slow
def test_quantizers_see_the_samples(stages):
    """Scales are those of the dataset and not of the examples: other samples, another file."""
    datasets = [{"dataset": "callables:batches", "kwargs": {"scale": scale}} for scale in (1.0, 50.0)]
    one, other = (stages.lower("builders:mlp", RECIPE, calibration={"forward": dataset}) for dataset in datasets)
    assert one.file != other.file


@pytest.mark.parametrize(
    ("scales", "names"),
    [
        ([1.0] * 8, []),
        ([1.0] * 6 + [1.0, 3.0], ["linear", "0"]),
        ([3.0] + [1.0] * 7, []),
        ([1.0] * 6 + [3.0], []),  # too few to say
    ],
)
def test_ranges_that_the_last_samples_widen(scales, names):
    """Ranges that the last quarter of the samples widens are named, the widest first, if there are eight samples."""
    from pteforge.tasks.quantize.pt2e import quantize
    from pteforge.tasks.targets import TargetParams

    torch.manual_seed(0)
    inputs = torch.rand(4, 8)
    program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(8, 4, bias=False)).eval(), (inputs,))
    quantizers = (TargetParams(name="xnnpack", options={}),)
    samples = [(inputs * scale,) for scale in scales]
    widened = quantize(program, (inputs,), samples, quantizers, count=len(samples))[1]["widened"]
    assert len(widened) == len(names)
    assert all(each.factor == pytest.approx(3, rel=0.1) for each in widened)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_smooth_layers(lower, dynamic):
    """A norm with two large channels costs a file over ten decibels, which moved scales win back."""
    options = {"quantizer": "xnnpack", "options": {"dynamic": dynamic}}
    reached = []
    for smooth in (False, True):
        quantize = {**options, "smooth": smooth}
        verify = {"min_sqnr_db": 3}
        lowered = lower("builders:uneven_norm", recipe("xnnpack", quantize=quantize, verify=verify))
        reached.append(lowered.figures["overall"]["sqnr_db"])
    assert reached[1] > reached[0] + 6


_PROGRAM = """
import resource, sys
from pathlib import Path
from pteforge.artifacts.local_store import LocalStore
from pteforge.tasks.programs.values import load_values
from pteforge.tasks.quantize.pt2e import quantize
from pteforge.tasks.engine.stage import Workspace
from pteforge.tasks.targets import TargetParams
from pteforge.tasks.quantize.stages.calibration import Calibration
import torch
zoo, folder, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, str(zoo))
store = LocalStore.open(folder)
params = Calibration.Params(
    source={"builder": "callables:batches", "kwargs": {"count": count, "width": 65536}}, seed=0, samples=count
)
with store.scratch() as scratch:
    samples = Calibration.run(Calibration.Inputs(), params, Workspace(store, scratch, folder)).samples
program = torch.export.export(torch.nn.Linear(65536, 2).eval(), (torch.zeros(3, 65536),))
quantizers = (TargetParams(name="xnnpack", options={}),)
quantize(program, [torch.zeros(3, 65536)], load_values(samples, store), quantizers)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.nightly
def test_memory_does_not_grow_with_samples(zoo, tmp_path):
    """Samples stream: ten times as many (750 MB in all) take no more memory."""
    peaks = {}
    for count in (100, 1000):
        command = [sys.executable, "-c", _PROGRAM, zoo, tmp_path / str(count), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        peaks[count] = int(done.stdout.split()[-1]) * 1024
    assert peaks[1000] < peaks[100] + 64 * 2**20


@pytest.mark.slow
def test_failures_say_what_was_observed(lower):
    """The message says that only examples were observed, where there are no samples and only random inputs miss."""

    def refused(least):
        return recipe("xnnpack", quantize={"quantizer": "xnnpack"}, verify={"min_sqnr_db": least, "drawn_inputs": 2})

    with pytest.raises(VerificationFailed, match=r"'forward' observed .*example inputs only.*give"):
        lower("builders:mlp", refused(45))
    samples = {"forward": {"dataset": "callables:BATCHES", "samples": 1}}
    dynamic = recipe(
        "xnnpack", quantize={"quantizer": "xnnpack", "options": {"dynamic": True}}, verify={"min_sqnr_db": 200}
    )
    for other, config in ((refused(200), {}), (refused(200), {"calibration": samples}), (dynamic, {})):
        with pytest.raises(VerificationFailed, match=r"^(?!.*observed)"):
            lower("builders:mlp", other, **config)
