"""Any bytes as the delegate's data, found by a fuzzer that sees which code they reach."""

import re
import subprocess
from pathlib import Path

import pytest
from pteforge.formats.pte.reader import read_pte

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # it builds first

_CORPUS = Path(__file__).parents[1] / "formats" / "nfat" / "corpus"
_RUNTIME = Path(__file__).parents[2] / "runtime"
_RUNS = 100_000


def test_containers(cmake, programs, tmp_path_factory, tmp_path):
    """Nothing crashes, hangs, leaks or makes a sanitizer report something, and errors are documented ones."""
    build = cmake(_RUNTIME, tmp_path_factory.mktemp("fuzzer"), "-DNFAT_BUILD_FUZZER=ON", "-DCMAKE_CXX_COMPILER=clang++")
    seeds, found = tmp_path / "seeds", tmp_path / "found"
    seeds.mkdir()
    found.mkdir()
    for name in ("v1", "v2", "v2-state", "transposed"):
        content = (programs / f"{name}.pte").read_bytes()
        delegate = next(each for method in read_pte(content).methods for each in method.delegates)
        (seeds / name).write_bytes(delegate.extent.of(content))
    folders = [found, seeds, *(_CORPUS / kind for kind in ("good", "bad", "mutated", "unloadable"))]
    options = [f"-runs={_RUNS}", "-seed=1", "-timeout=10", "-rss_limit_mb=2048", "-max_len=8192"]
    done = subprocess.run(
        [build / "fuzz_containers", *options, f"-artifact_prefix={tmp_path}/", *folders],
        capture_output=True,
        text=True,
        check=False,
        errors="replace",
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert re.search(rf"Done {_RUNS} runs", done.stderr)
    assert len(list(found.iterdir())) > 100
