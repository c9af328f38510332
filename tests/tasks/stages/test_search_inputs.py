"""search_inputs: files that are wrong somewhere are found out, right ones are not, and what was found is kept."""

import time
from dataclasses import replace

import pytest
from pteforge.artifacts.store import open_store
from pteforge.errors import VerificationFailed
from pteforge.tests.lowering import recipe

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
        ("every third call", {}, r"searched \[2, 4\], .* output 0: SQNR"),
    ],
)
def test_faults_are_found(lower_apart, fault, kwargs, said):
    """Within its time, where the examples pass; the message says for which sizes and values."""
    planted(lower_apart, fault, **kwargs)
    begun = time.monotonic()
    with pytest.raises(VerificationFailed, match=f"on inputs that a search has found, .*{said}"):
        planted(lower_apart, fault, search=SEARCH, **kwargs)
    assert time.monotonic() - begun < 20


def test_what_was_found_is_tried_first(lower_apart, tmp_path, monkeypatch):
    """The next file of the model is run on inputs that an earlier one was wrong on, before it is searched itself."""
    from pteforge.tasks.stages.search_inputs import SearchInputs

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
    searched = made.provenance["searched"]
    assert searched["cases"] > 20
    assert (searched["problem"], searched["differing"], searched["unsteady"]) == ("", 0, False)
    assert searched["worst"]["label"].startswith("searched [")
    assert searched["worst"]["sqnr_db"] > 100
    again = lower_apart("builders:mlp", recipe("xnnpack", verify=BRIEF))
    assert again.outputs == made.outputs
