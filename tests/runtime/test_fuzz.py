"""Any bytes as the delegate's data, found by a fuzzer that sees which code they reach."""

import pytest
from pteforge.formats.pte.reader import read_pte
from pteforge.tests.faults.fuzzing import build_fuzzer, fuzz_containers

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]  # it builds first

_RUNS = 100_000


def test_containers(programs, tmp_path):
    """Nothing crashes, hangs, leaks or makes a sanitizer report something, and errors are documented ones."""
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for name in ("v1", "v2", "v2-state", "transposed", "halves"):
        content = (programs / f"{name}.pte").read_bytes()
        delegate = next(each for method in read_pte(content).methods for each in method.delegates)
        (seeds / name).write_bytes(delegate.extent.of(content))
    fuzz_containers(build_fuzzer(tmp_path), tmp_path, seeds, runs=_RUNS, seed=1)
