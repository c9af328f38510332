"""What methods take on a place: memory, by counting allocators, and time; where it is shown, and limits on it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # builds a library, and lowers a zoo

_RESNET = "executorch.examples.models.mlperf_tiny.resnet8:ResNet8Model"
_NETS = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 16)

    def forward(self, x):
        return torch.cumsum(torch.relu(self.inner(x)), 1)


def net():
    return Net(), (torch.randn(2, 8),)
"""
_SCRIPTS = {
    "on-phone": 'exec {build}/nfat_run "$@"',
    "qemu-none": 'exec {build}/nfat_run "$@"',  # as an emulator is called
    "older": 'for word; do case "$word" in --memory|--bench|--etdump) exit 2;; esac; done; exec {build}/nfat_run "$@"',
}


@pytest.fixture(scope="module")
def made(tmp_path_factory, build):
    """A zoo that was exported once, and how that ended."""
    folder = tmp_path_factory.mktemp("costs")
    (folder / "nets.py").write_text(_NETS)
    for name, script in _SCRIPTS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script.format(build=build)}\n")
        (folder / name).chmod(0o700)
    recipes = {
        "xnnpack": {"extends": "xnnpack-fp32", "verify": {"on": ["on-phone"]}},
        "unfolded": {"extends": "portable-fp32", "fold_batch_norms": False, "verify": {"on": ["on-phone"]}},
        "timed": {
            "extends": "xnnpack-fp32",
            "debug": True,
            "verify": {"on": ["host", "on-phone", "qemu-none", "older"], "bench": True},
        },
        "fat": {
            "output": {"form": "fat"},
            "specializations": [{"target": "mlx"}, {"target": "xnnpack"}, {"target": "portable"}],
            "verify": {"on": ["on-phone"], "bench": True},
        },
        "plain": {"extends": "portable-fp32"},
    }
    limits = {"planned": "64KiB", "method": "2KiB", "total": "4MiB"}
    models = {
        "resnet8": {"source": _RESNET, "recipes": ["xnnpack", "unfolded"], "limits": {"device": limits}},
        "net": {
            "source": "nets:net",
            "recipes": ["timed", "fat", "plain"],
            "dynamic_shapes": {"forward": [{0: {"min": 1, "max": 32}}]},
        },
    }
    places = {name: {"command": f"./{name}"} for name in _SCRIPTS}
    (folder / "zoo.yaml").write_text(
        yaml.safe_dump({"version": 1, "places": places, "recipes": recipes, "models": models})
    )
    return folder, _export(folder)


def _run(folder: Path, *options: str) -> str:
    command = [Path(sys.executable).with_name("pteforge"), "export", "zoo.yaml", "--store", "store", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ)
    assert done.stdout, done.stderr
    return done.stdout


def _export(folder: Path, *options: str) -> dict:
    return json.loads(_run(folder, "--json", *options))


def test_known_figures(made):
    """The method allocator is asked for what an independent host has counted, and a buffer is a bit larger."""
    (use,) = made[1]["models"]["resnet8"]["xnnpack"]["memory"]
    assert (use["planned"], use["asked"], use["calls"], use["place"]) == ([12400], 1145, 27, "on-phone")
    assert use["asked"] <= use["buffer"] < use["asked"] + 16 * use["calls"]
    assert use["heap"] >= use["heap_loaded"] > 4 * 70_000  # XNNPACK packs the weights
    assert (use["inputs"], use["shapes"]) == ("example", "1x3x32x32")


def test_limits_of_devices(made, run_here):
    """A file whose methods need more fails its recipe, with the method, the figure and the limit; the others do not."""
    failed = made[1]["models"]["resnet8"]["unfolded"]
    assert failed["status"] == "failed"
    for telling in (
        "method 'forward' takes 196,608 bytes, and `limits.device.planned` allows 65,536",
        "method 'forward' takes 22,097 bytes on on-phone, example inputs (1x3x32x32)",
    ):
        assert telling in failed["problem"]
    assert "total" not in failed["problem"]
    said = run_here(made[0], "plan", "zoo.yaml", "--store", "store", "--set", "models.net.limits.device.method=1KiB")
    said.refused("models.net.limits.device.method: no place of recipe 'plain' measures it", "runtime install host")


def test_limits_are_in_no_key(made):
    """Another limit runs no stage again."""
    again = _export(made[0], "--model", "resnet8", "--set", "models.resnet8.limits.device={planned: 1MiB}")
    assert again["stages"]["ran"] == 0
    (use,) = again["models"]["resnet8"]["unfolded"]["memory"]  # what it takes is in facts of an independent host, too
    assert (use["planned"], use["asked"], use["calls"], use["heap_loaded"]) == ([196608], 21870, 517, 0)


def test_sizes_of_inputs(made):
    """Of dynamic inputs, the smallest, the example's and the largest sizes are measured."""
    uses = [use for use in made[1]["models"]["net"]["fat"]["memory"] if use["payload"] == "portable"]
    assert {use["inputs"]: use["shapes"] for use in uses} == {"smallest": "1x8", "example": "2x8", "largest": "32x8"}
    assert len({use["asked"] for use in uses}) == 1
    assert {use["place"] for use in uses} == {"on-phone"}


def test_without_measurements(made):
    """A payload that no place has measured has planned memory only; a command that cannot measure is no failure."""
    models = made[1]["models"]["net"]
    assert {use["place"] for use in models["timed"]["memory"]} == {"on-phone", "qemu-none"}
    assert "older" in models["timed"]["proven_on"][""]
    (mlx,) = (use for use in models["fat"]["memory"] if use["payload"] == "mlx")
    (plain,) = models["plain"]["memory"]
    for use in (mlx, plain):
        assert use["planned"]
        assert (use["place"], use["buffer"], use["heap"]) == ("", None, None)


def test_where_memory_is_shown(made, run_here, tmp_path):
    """`inspect` and the page say it; the header is C++ with the largest figures."""
    folder = made[0]
    said = "method 'forward' takes bytes: planned 12,400, method 1,145 in 27 calls (a buffer of 1,152)"
    assert said in run_here(folder, "inspect", "out/resnet8/xnnpack.pte").out
    assert said.replace("'", "&#39;") in (folder / "out/index.html").read_text()
    fat = run_here(folder, "contract", "out/net/fat.pte", "--header").out
    assert "namespace net::fat::mlx::forward {\nconstexpr std::size_t planned_1" in fat
    source = run_here(folder, "contract", "out/resnet8/xnnpack.pte", "--header").out
    checks = "planned == 12400 && resnet8::xnnpack::forward::method == 1152"
    (tmp_path / "memory.cpp").write_text(f'{source}\nstatic_assert(resnet8::xnnpack::forward::{checks}, "");\n')
    command = ["g++", "-std=c++17", "-fsyntax-only", "-Wno-pragma-once-outside-header", tmp_path / "memory.cpp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_times(made):
    """Each payload is timed on every place that runs for real and can; shares are of delegates and operators."""
    models = made[1]["models"]["net"]
    timed = {timing["place"]: timing for timing in models["timed"]["timings"]}
    assert list(timed) == ["host", "on-phone"]  # not on an emulated core
    for timing in timed.values():
        assert 0 < timing["median"] <= timing["p95"]
        assert timing["calls"] >= 10
        assert min(timing["load"], timing["first"]) > 0
        shares = {share["name"]: share for share in timing["shares"]}
        assert set(shares) == {"XnnpackBackend", "aten::cumsum.out"}
        assert shares["XnnpackBackend"]["delegate"]
        assert not shares["aten::cumsum.out"]["delegate"]
        assert 0 < sum(share["share"] for share in shares.values()) <= 1
    assert [timing["payload"] for timing in models["fat"]["timings"]] == ["xnnpack", "portable"]


def test_times_are_kept_and_decide_nothing(made):
    """A rerun measures nothing; provenance is the same with and without times, which are in its `run` only."""
    folder, first = made
    said = _run(folder, "--model", "net", "--recipe", "timed,fat")
    assert {"memory", "latency"} <= set(said.split())
    assert "; 0 stages run" in said  # but for the place that failed, which is tried again
    again = _export(
        folder, "--model", "net", "--recipe", "timed", "--set", "recipes.timed.verify.bench=false", "--out", "b"
    )
    assert again["stages"]["ran"] == 0
    with_times, without = (json.loads((folder / out / "net/timed.json").read_text()) for out in ("out", "b"))
    assert with_times.pop("run")["findings"]["timings"] == first["models"]["net"]["timed"]["timings"]
    assert "findings" not in without.pop("run")
    assert with_times == without
    assert " on host" in (folder / "out/index.html").read_text()


def test_latency_has_a_limit(made, run_here):
    """`diff` holds a file to the times of another one where both were measured, and fails where they were not."""
    folder = made[0]
    slower = folder / "slower" / "net"
    slower.mkdir(parents=True)
    (slower / "timed.pte").write_bytes((folder / "out/net/timed.pte").read_bytes())
    provenance = json.loads((folder / "out/net/timed.json").read_text())
    for timing in provenance["run"]["findings"]["timings"]:
        timing["median"] *= 1.5
    (slower / "timed.json").write_text(json.dumps(provenance))
    old, new = "out/net/timed.pte", "slower/net/timed.pte"
    said = run_here(folder, "diff", old, new, "--fail-on", "latency=10%")
    assert said.code == 1
    assert "latency of method 'forward' on host" in said.out + said.err
    assert "is 50 % longer" in said.out + said.err
    assert run_here(folder, "diff", old, new, "--fail-on", "latency=60%").code == 0
    provenance["run"]["findings"]["timings"] = []
    (slower / "timed.json").write_text(json.dumps(provenance))
    said = run_here(folder, "diff", old, new, "--fail-on", "latency=60%")
    assert "latency cannot be compared" in said.out + said.err


def test_bench(made, run_here):
    """Files are timed on places, with the lines of the model in debug mode; an emulated core has no times."""
    folder = made[0]
    bench = ["bench", "--store", "store", "--seconds", "0.05"]
    said = run_here(folder, *bench, "out/net/timed.pte", "out/net/fat.pte")
    assert said.code == 0, said.err
    assert "out/net/timed.pte: method 'forward' on host: " in said.out
    assert "aten::cumsum.out (1 call, outside of delegates): nets.py:10" in said.out
    assert "out/net/fat.pte: method 'forward' of payload 'portable' on host: " in said.out
    assert "out/net/fat.pte, mlx, on host: needs MLXBackend" in said.err
    said = run_here(folder, *bench, "out/net/timed.pte", "--place", "command:./qemu-none", "--json")
    found = json.loads(said.out)
    assert found["timings"] == []
    assert list(found["not_run"].values()) == ["has no times on an emulated core"]
    said = run_here(folder, *bench, "out/net/timed.pte", "--place", "command:./older")
    assert said.code == 1
    assert "the command ended with exit code 2" in said.err


def test_against(made, run_here):
    """Two files are measured in turns, in one run; the ratio of their times comes with its spread."""
    folder = made[0]
    bench = ["bench", "--store", "store", "--seconds", "0.2", "--json"]
    for place in ("host", "command:./on-phone"):
        said = run_here(folder, *bench, "out/resnet8/xnnpack.pte", "--against", "out/net/plain.pte", "--place", place)
        (ratio,) = json.loads(said.out)["ratios"]
        assert 1.5 < ratio["min"] <= ratio["median"] <= ratio["max"]
        assert ratio["rounds"] >= 5
    said = run_here(folder, *bench, "out/net/fat.pte", "--against", "out/net/timed.pte")
    said.refused("have no method in common")


@pytest.mark.nightly
def test_emulated_cores(made, run_here):
    """Allocators are counted on an emulated Arm core, too, and are asked for what they are asked for here."""
    said = run_here(made[0], "runtime", "install", "arm64")
    assert said.code == 0, said.err
    again = _export(made[0], "--model", "resnet8", "--recipe", "xnnpack", "--place", "qemu:cortex-a53")
    here, there = again["models"]["resnet8"]["xnnpack"]["memory"]
    assert {here["place"], there["place"]} == {"on-phone", "cortex-a53"}
    for figure in ("planned", "asked", "calls", "buffer", "temporary"):
        assert here[figure] == there[figure]
    assert min(here["heap"], there["heap"]) > 0


def test_why_an_operator_is_not_delegated(tmp_path):
    """What limits leave to the CPU has the reason next to its share of the time."""
    from pteforge.flows.cli.run import _shares
    from pteforge.tasks.results.costs import TimeShare, Timing
    from pteforge.tasks.results.delegation import MethodWork, OutsideCalls
    from pteforge.tasks.results.delivered import Delivered

    works = (
        MethodWork("vulkan", "forward", 1, (OutsideCalls("aten.add.Tensor", "it is wrong there", 1, 1, True),)),
        MethodWork("other", "forward", 1, (OutsideCalls("aten.mul.Tensor", "not this payload", 1, 1, True),)),
    )
    shares = (TimeShare("aten::add.out", 0.5, 1), TimeShare("aten::mul.out", 0.25, 2), TimeShare("V", 0.1, 1, True))
    timing = Timing("vulkan", "forward", "host", "cpu", 0.1, 0.1, 0.01, 0.02, 9, 5, shares)
    assert list(_shares(tmp_path / "fat.pte", timing, Delivered("net", "fat", "made", findings=works))) == [
        " 50.0%  aten::add.out (1 call, outside of delegates)",
        "        left to the CPU: it is wrong there",
        " 25.0%  aten::mul.out (2 calls, outside of delegates)",
        " 10.0%  V (1 call)",
    ]
