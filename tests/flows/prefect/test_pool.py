"""How models are divided into the flow runs of a work pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pteforge.flows.prefect.pool import ALONE, MOST, batches

SECONDS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(0, 2 * ALONE), max_size=40)


@given(SECONDS, st.integers(0, 8))
def test_each_model_is_in_one_run(seconds, workers):
    """No model is left out or lowered twice, and no run is empty; one that takes long has a run of its own."""
    divided = batches(seconds, workers)
    assert sorted(name for names in divided for name in names) == sorted(seconds)
    assert all(divided)
    assert all(len(names) == 1 for names in divided if any(seconds[name] >= ALONE for name in names))


@given(SECONDS, st.integers(0, 8))
def test_no_run_keeps_others_waiting(seconds, workers):
    """Runs that models share differ by one of them at most, and take longer than `MOST` only by part of one."""
    shared = [names for names in batches(seconds, workers) if seconds[names[0]] < ALONE]
    totals = [sum(seconds[name] for name in names) for names in shared]
    longest = max((seconds[name] for names in shared for name in names), default=0.0)
    assert max(totals, default=0.0) - min(totals, default=0.0) <= longest + 1e-6
    assert max(totals, default=0.0) <= MOST + longest + 1e-6


@pytest.mark.parametrize(
    ("count", "each", "workers", "runs"),
    [(100, 4.0, 2, 2), (27, 4.0, 2, 2), (20, 1.0, 8, 2), (3, 1.0, 8, 1), (2, ALONE, 1, 2), (7, MOST / 6, 1, 2)],
)
def test_small_models_share_runs(count, each, workers, runs):
    """There is a run for each worker if it has enough to do, and as many as it takes to end in time."""
    assert len(batches({f"net{index}": each for index in range(count)}, workers)) == runs


def test_longest_models_come_first():
    """Runs are started in the order of their models' seconds."""
    assert batches({"b": 100.0, "c": 1.0, "a": 200.0, "d": 2.0}, 1) == [["a"], ["b"], ["d", "c"]]
