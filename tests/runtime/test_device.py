"""`pteforge verify --place`: files on another machine, which is a process here, or Arm cores that QEMU emulates."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # the first test builds the library and lowers the zoo
    # torchao imports libraries that this torch does not have.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

_TESTS = Path(__file__).parents[1]
_PLAIN = ("two_methods_with_keywords", "mixed_inputs", "mixed_outputs", "other_types", "writes_to_inputs")
_PLAIN += ("optional_input", "size_output", "counter", "channels_last")
_RECIPES = {
    "fat": {
        "output": {"form": "fat"},
        "specializations": [{"target": "mlx"}, {"target": "xnnpack"}, {"target": "portable"}],
    },
    "external": {"extends": "xnnpack-fp32", "output": {"external_data": True}},
    "shared": {"extends": "portable-fp32", "compile": {"share_mutable_buffers": True}},
}


@pytest.fixture(scope="module")
def lowered(tmp_path_factory) -> Path:
    """A folder with a lowered zoo: inputs, outputs and state of all kinds."""
    folder = tmp_path_factory.mktemp("zoo")
    of_recipe = {"images": "fat", "wide_conv": "external", "cached": "shared", "conv_net": "xnnpack-int8-static"}
    of_recipe |= dict.fromkeys(_PLAIN, "portable-fp32") | {"shared_input": "xnnpack-int8-dynamic"}
    zoo = {
        "version": 1,
        "python_path": [os.path.relpath(_TESTS / "zoo", folder)],
        "recipes": _RECIPES,
        "models": {name: {"source": f"builders:{name}", "recipes": [recipe]} for name, recipe in of_recipe.items()},
    }
    (folder / "zoo.yaml").write_text(json.dumps(zoo))
    command = [Path(sys.executable).with_name("pteforge"), "export", "zoo.yaml", "--store", "store"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def verify(run_here, lowered):
    """Runs `pteforge verify` on files of the folder."""
    return lambda *arguments: run_here(lowered, "verify", "--store", "store", *arguments)


def _figures(said):
    assert said.code == 0, said.err  # libraries say there what they think of this machine
    return json.loads(said.out)


def test_what_is_compared_is_the_same(verify, lowered, build):
    """For calls with all kinds of inputs and outputs, and sequences of them, figures are those of this process."""
    files = [file for file in sorted(lowered.glob("out/*/*.pte")) if file.name != "fat.pte"]
    assert len(files) == len(_PLAIN) + 4
    there = _figures(verify(*files, "--json", "--place", f"command:{build}/nfat_run"))
    assert there == _figures(verify(*files, "--json"))
    assert len(there["verified"]) == len(files)


def test_fat_files(verify, build):
    """The payload that the device chooses is the one that is compared."""
    here = _figures(verify("out/images/fat.pte", "--json"))
    there = _figures(verify("out/images/fat.pte", "--json", "--device", build / "nfat_run"))
    assert list(there["payloads"]) == ["xnnpack"]
    assert there["payloads"]["xnnpack"] == here["payloads"]["xnnpack"]


@pytest.mark.parametrize("core", ["cortex-a53", "cortex-a76"])
def test_arm(verify, run_here, lowered, core):
    """On an Arm core, files compute what eager computes; in floating point the last digits are others'."""
    said = run_here(lowered, "runtime", "install", "arm64")
    assert said.code == 0, said.err
    files = (
        "out/conv_net/xnnpack-int8-static.pte",
        "out/shared_input/xnnpack-int8-dynamic.pte",
        "out/images/fat.pte",
        "out/cached/shared.pte",
        "out/two_methods_with_keywords/portable-fp32.pte",
    )
    assert list(_figures(verify(*files, "--json", "--place", f"qemu:{core}"))["verified"]) == list(files)


def test_devices_that_fail(verify, build, tmp_path):
    """What is wrong with the command, or with what it computes, is said."""
    file = "out/wide_conv/external.pte"
    other = tmp_path / "other"
    other.write_text(f'#!/bin/sh\n{build}/nfat_run "$@" | tr "\\000-\\377" "\\001-\\377\\000"\n')
    other.chmod(0o700)
    for command, telling in (
        (str(other), "does not compute what eager computes"),
        ("echo", "the command wrote"),
        (
            "sh -c 'echo no phone >&2; exit 3'",
            "method 'forward', example 0: the command ended with exit code 3:\nno phone",
        ),
    ):
        said = verify(file, "--place", f"command:{command}")
        assert (said.code, said.out) == (1, ""), command
        assert telling in said.err
    verify(file, "--place", "command:no-such-program").refused("the command 'no-such-program' cannot be run")
    verify(file, "--place", "command:'nfat_run").refused("No closing quotation")
