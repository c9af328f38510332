"""Benchmarks run on something small, and their figures are plausible."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, *arguments: str | Path, **environment: str) -> str:
    """What a benchmark prints."""
    command = [sys.executable, BENCHMARKS / f"{name}.py", *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_digests_cost_little():
    """Digesting all that the stages of the starter zoo read takes less than 2 % of the CPU time."""
    figures = json.loads(run("digests", "--repeat", "1", "--json"))
    assert figures["runs"][0]["objects"] > 500
    assert 0 < figures["share"] < 0.02


def test_memory_of_every_stage(tmp_path):
    """Each stage that runs in a worker has a peak, the weights are counted, and the command succeeds."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = ("--model", "tiny", "--recipe", "xnnpack-fp32", "--recipe", "fat", "--json")
    figures = json.loads(run("memory", *options, PATH=path, TMPDIR=str(tmp_path)))
    assert figures["weights"] == 4 * (2 * 32000 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64)
    in_workers = {"export", "edge/forward/{}", "partition/forward/{}", "preprocess/{}", "compile/{}", "verify/{}"}
    assert all(figures["steps"][step.format("xnnpack-fp32")]["peak"] > 0 for step in in_workers)
    assert figures["steps"]["pack/fat"]["peak"] > 0
    assert figures["driver"] > 50 << 20
    assert figures["worker"] > max(step["peak"] for step in figures["steps"].values())
    assert figures["disk"] > figures["weights"]
    assert 0 < figures["packed"] < figures["steps"]["verify/xnnpack-fp32"]["peak"]
    assert not list(tmp_path.glob("pteforge-bench-*"))


def test_files_are_as_exact_as_those_of_executorch():
    """Static, and dynamic in int4: for each output and input, SQNR is within 1 dB of `executorch.export`."""
    recipes = ("xnnpack-int8-static", "xnnpack-int8da-int4w-per-channel")
    said = run("quantization", "--json", "--model", "resnet8", "--recipe", ",".join(recipes))
    pairs = {pair["recipe"]: pair for pair in json.loads(said)}
    assert set(pairs) == set(recipes)
    for pair in pairs.values():
        assert abs(pair["difference"]) <= 1
        assert pair["largest_difference"] <= 1
        assert len(pair["ours"]["sqnr_db"]) == 3  # the example and two random inputs
        assert all(10 < ratio < 60 for ratio in pair["ours"]["sqnr_db"])  # fp32 has 130 dB
        assert 0.9 < pair["size_ratio"] < 1.1


def test_both_sides_make_two_operators(tmp_path):
    """Two cases each of two operators are run and right on both sides, and a second run has nothing to do."""
    options = ("--only", "add,conv2d", "--cases", "2", "--flows", "xnnpack-fp32", "--folder", tmp_path)
    outputs = [run("upstream_suite", *options) for _ in range(2)]
    for side in ("ours", "direct"):
        assert [*json.loads((tmp_path / f"xnnpack-fp32, {side}.json").read_text()).values()] == [""] * 4
    assert all("| xnnpack-fp32 | 4 | 0 | 4 | 0 | 0 | 0 |" in output for output in outputs)
    assert "right\n" in outputs[0]
    assert ": right" not in outputs[1]


def test_nothing_to_quantize_is_final(tmp_path):
    """A case in which ours finds nothing to quantize is counted as that, not run again, and not on the other side."""
    message = "StageFailed: the quantizer of xnnpack finds no operator in the program that it could quantize"
    case = "abs/test_abs_dtype-torch.float32/0"
    (tmp_path / "xnnpack-int8-dynamic, ours.json").write_text(json.dumps({case: message}))
    options = ("--only", "abs", "--cases", "1", "--flows", "xnnpack-int8-dynamic", "--retry", "--folder", tmp_path)
    assert "| xnnpack-int8-dynamic | 1 | 1 | 0 | 0 | 0 | 0 |" in run("upstream_suite", *options)
    assert [path.name for path in tmp_path.iterdir()] == ["xnnpack-int8-dynamic, ours.json"]


def test_gallery(tmp_path):
    """A model of the gallery becomes a row, from a file that was made; a second run lowers nothing."""
    options = ("--only", "keyword-spotting", "--folder", tmp_path)
    rows = [run("gallery", *options).splitlines()[2] for _ in range(2)]
    cells = [cell.strip() for cell in rows[0].split("|")[1:-1]]
    assert cells[:3] == ["Keyword spotting (DS-CNN)", "random", "`microphone`"]
    assert re.fullmatch(r"\d+\.\d KiB", cells[3])
    assert re.fullmatch(r"SQNR \d+\.\d dB", cells[4])
    assert rows[1].split("|")[1:7] == rows[0].split("|")[1:7]


def test_table_of_trained_networks(tmp_path):
    """What a folder has becomes tables: scores, sizes, what a search found, and which networks it is not enough for."""
    eager, fp32 = {"score": 0.9, "task": "80 words"}, {"score": 0.9, "bytes": 400_000}
    attempt = {"variant": {}, "layers": 0, "size": 100_000}
    found = {"score": 0.895, "share": 0.9, "note": "in floating point: 1 of 9 layers (head)", "attempts": [attempt]}
    for name, size in {"g2p_en": 105_000, "silero_vad": 120_000}.items():
        cells = {"eager": eager, "xnnpack-fp32": fp32, "search": {**found, "bytes": size}, "PT2E": {"problem": "no"}}
        (tmp_path / f"{name}.json").write_text(json.dumps(cells))
    said = run("real_weights", "--table", "--only", "g2p_en,silero_vad,pesto", "--folder", tmp_path)
    assert "| g2p_en | 80 words | 0.900 | 0.900, 400 |  |  | 0.895, 105, 90 % |  |" in said
    assert "| g2p_en |  | 0.895, 105, 90 % | fails |  |" in said
    assert "for 1 of 2 networks; not for: Silero VAD (0.994 of the score, 1.20 of the bytes)." in said
    assert "- g2p_en: in floating point: 1 of 9 layers (head)\n" in said
    assert "- g2p_en, PT2E: no\n" in said
    assert "PESTO" not in said
