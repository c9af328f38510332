"""search_inputs: files that are wrong somewhere are found out, right ones are not, and what was found is kept."""

from dataclasses import replace

import pytest
import torch
from pteforge.artifacts.store import open_store
from pteforge.errors import VerificationFailed
from pteforge.tests.lowering import recipe

KINDS = ["shuffled", "zeros", "ones", "constant", "one-hot", "negative", "large", "mixed", "small", "denormal"]
SEARCH = {"search": {"seconds": 20}}
BRIEF = {"search": {"seconds": 0.3}}


@pytest.fixture
def lower_apart(stages, tmp_path):
    """Lowers models on a store of its own, whose ledger keeps no inputs that other tests have found."""
    return replace(stages, store=type(stages.store).open(tmp_path / "store"), results={}).lower


def planted(lower, fault, *, search=None, **kwargs):
    """`builders:planted`, lowered with a fault that a pass of the recipe plants."""
    passes = [{"callable": "edge_passes:plant", "kwargs": {"fault": fault}}]
    made = recipe("portable", aten_passes=passes, verify={"drawn_inputs": 0, **(search or {})})
    return lower({"builder": "builders:planted", "kwargs": kwargs}, made)


@pytest.mark.parametrize(
    ("fault", "kwargs", "said"),
    [
        ("one size", {}, r"searched \[37, 4\], .* output 0: SQNR"),
        ("truncates", {"whole": True}, r"searched \[2, 4\], negative .* equal eager's"),
        ("never resizes", {"rows": 64}, r"searched \[2, 4\], .* it gives torch.float32 \(64, 4\), eager gives"),
        ("call 3", {}, r"searched \[2, 4\], .* output 0: SQNR"),
    ],
)
def test_faults_are_found(lower_apart, fault, kwargs, said):
    """In 20 seconds, where the examples pass; the message says for which sizes and values."""
    with pytest.raises(VerificationFailed, match=f"a search has found, .*{said}"):
        planted(lower_apart, fault, search=SEARCH, **kwargs)


def test_answers_that_do_not_come_again(lower_apart):
    """A file that was wrong once is refused although it is right when it is run again; the message says so."""
    with pytest.raises(VerificationFailed, match=r"^not every time, .*searched \[\d+, 4\].*--refresh"):
        planted(lower_apart, "call 40", search=SEARCH)


@pytest.mark.slow
def test_what_was_found_is_tried_first(lower_apart, tmp_path, monkeypatch):
    """The next file of the model is run on inputs that an earlier one was wrong on, before it is searched itself."""
    from pteforge.tasks.verify.stages.search_inputs import SearchInputs

    for fault in ("one size", "never resizes"):
        with pytest.raises(VerificationFailed, match=r"searched \[37, 4\]"):
            planted(lower_apart, fault, search=SEARCH, rows=64)
        monkeypatch.setattr(SearchInputs, "run", None)  # what runs it from now on fails
    monkeypatch.undo()
    right = planted(lower_apart, "", search=BRIEF, rows=64)
    assert sorted(role for role in right.steps["verify"].call.inputs if role.startswith("found")) == ["found/0"]
    with open_store(str(tmp_path / "store")) as store:
        kept = store.ledger.found_inputs("model/tested")
    assert [found.wrong for found in kept] == [True, *[False] * (len(kept) - 1)]


def test_right_file(lower_apart):
    """The provenance says how many inputs were searched, and which one was worst; a rerun finds all of it."""
    made = lower_apart("builders:mlp", recipe("xnnpack", verify=BRIEF))
    searched = made.findings["searched"]
    assert searched["cases"] > 20
    assert (searched["problem"], searched["differing"], searched["unsteady"]) == ("", 0, False)
    assert searched["worst"]["label"].startswith("searched [")
    assert searched["worst"]["sqnr_db"] > 100
    again = lower_apart("builders:mlp", recipe("xnnpack", verify=BRIEF))
    keys = [{step: done.key.digest() for step, done in run.steps.items()} for run in (made, again)]
    assert keys[0] == keys[1]


@pytest.mark.slow
def test_payloads_of_fat_files(lower_apart):
    """All that can run here are searched, and the message names the one that is wrong."""
    passes = [{"callable": "edge_passes:plant", "kwargs": {"fault": "one size"}}]
    fat = recipe("vulkan", "xnnpack", "portable", aten_passes=passes, verify={"drawn_inputs": 0, **SEARCH})
    with pytest.raises(VerificationFailed, match=r"^payload 'xnnpack': .*searched \[37, 4\]"):
        lower_apart("builders:planted", fat)


@pytest.mark.slow
def test_what_cannot_be_run_here(lower_apart):
    """A file for another machine, which need not be run, is made without a search."""
    made = lower_apart("builders:planted", recipe("vulkan", verify={"required": False, **SEARCH}))
    assert made.findings["searched"]["cases"] == 0
    assert "inputs" not in made.outputs["search_inputs"]


@pytest.fixture
def box(stages, lower):
    """The inputs that the method of a builder takes."""
    from pteforge.configs.verification import VerifyBounds
    from pteforge.formats.pte.reader import read_pte
    from pteforge.tasks.verify.adversarial import Box, Judge
    from pteforge.tasks.verify.running import StoredProgram

    def made(builder):
        lowered = lower(builder, recipe("portable"), until="serialize")
        judge = Judge("forward", StoredProgram(lowered.outputs["export"]["program"], stages.store), VerifyBounds())
        (method,) = read_pte(lowered.file).methods
        return Box(method, lowered.program("export"), lowered.value("export", "examples"), judge)

    return made


def test_sizes(box):
    """Corners come first; then each dimension has all of its sizes, which meet in many pairs, equal ones among them."""
    found = box({"builder": "builders:of_any_length", "kwargs": {"network": "Recent"}})
    probes = [found.probe(number, 0, None) for number in range(400)]
    assert {(1, 2), (8, 2), (1, 32), (8, 32), (2, 9)} <= {probe.sizes for probe in probes[:11]}
    assert {probe.kinds for probe in probes[:40]} == {(kind,) for kind in KINDS}
    assert {probe.sizes[0] for probe in probes} == set(range(1, 9))
    assert {probe.sizes[1] for probe in probes} == set(range(2, 33))
    assert len({probe.sizes for probe in probes}) > 150
    assert sum(probe.sizes[0] == probe.sizes[1] for probe in probes) > 20
    assert probes == [found.probe(number, 0, None) for number in range(400)]
    for probe in probes[:40]:
        assert [tuple(flat[0].shape) for flat in found.draw(probe, 0)] == [probe.sizes] * 3


def test_values(box):
    """Integers stay between those of the examples, but for their negatives; a seed decides all values."""
    found = box({"builder": "builders:planted", "kwargs": {"whole": True}})
    for number in range(60):
        probe = found.probe(number, 0, None)
        inputs, again = (next(found.draw(probe, seed))[0] for seed in (0, 0))
        assert inputs.equal(again)
        assert inputs.abs().max() <= 19
        assert bool((inputs < 0).any()) <= (probe.kinds[0] in ("negative", "mixed"))


def test_what_rounding_decides():
    """Noise that an operator amplifies is not held against a file, as far as the program has it; a wrong value is."""
    from pteforge.configs.verification import VerifyBounds
    from pteforge.tasks.usercode.inputs import StoredCase
    from pteforge.tasks.verify.adversarial import Judge
    from pteforge.tasks.verify.running import TorchProgram

    x = torch.full((1, 1000), 0.1)
    program = TorchProgram(lambda: torch.export.export(torch.nn.LayerNorm(1000), (torch.randn(1, 1000),)))
    judge = Judge("forward", program, VerifyBounds())
    (expected,) = judge.expected([x])
    stored = StoredCase("searched", [x], [expected])
    noise = 1e-6 * torch.randn(1, 1000)
    assert judge.compare([expected + noise], stored) == (None, "")
    assert "SQNR" in judge.compare([expected + 1e5 * noise], stored)[1]
    assert "gives torch.float32 (2, 1000)" in judge.compare([expected.expand(2, -1)], stored)[1]
    assert judge.expected([torch.full((1, 1000), torch.nan)]) is None
