"""Places: every payload is run where a recipe asks for it, and what came of that is shown wherever the file is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # builds a library, and lowers a zoo

_TESTS = Path(__file__).parents[1]
_FAT = {
    "output": {"form": "fat"},
    "specializations": [{"target": "mlx"}, {"target": "xnnpack"}, {"target": "portable"}],
}
_PLAIN = {"specializations": [{"target": "mlx"}]}
_FAILING = {
    "zeros": "does not compute what eager computes",
    "throw": "the device is lost",
    "abort": "killed by SIGABRT",
    "hang": "killed at its time limit",
}


@pytest.fixture(scope="module")
def library(made_once, cmake) -> Path:
    """A shared library with a backend that the wheel's runtime lacks."""
    folder = made_once("place", lambda folder: cmake(_TESTS / "flows" / "native", folder))
    return folder / "libplace_backend.so"


@pytest.fixture(scope="module")
def made(tmp_path_factory, library, build):
    """A zoo that was exported once with places of all kinds, and how that ended."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "nets.py").write_text("import torch\n\n\ndef relu():\n    return torch.nn.ReLU(), (torch.randn(2, 8),)\n")
    (folder / "on-phone").write_text(f'#!/bin/sh\nexec {build}/nfat_run "$@"\n')
    (folder / "on-phone").chmod(0o700)
    wrong = f'#!/bin/sh\ntest "$1" = --about && exit 0\n{build}/nfat_run "$@" | tr "\\000-\\377" "\\001-\\377\\000"\n'
    (folder / "broken").write_text(wrong)
    (folder / "broken").chmod(0o700)
    places = {how: {"library": str(library), "env": {"HOW": how}} for how in ("relu", "absent", *_FAILING)}
    places["relu"]["about"] = "cat device.txt"
    places |= {"phone": {"command": "./on-phone"}, "broken": {"command": "./broken"}}
    places |= {"lost": {"command": "./on-phone", "about": "sh -c 'echo no device >&2; exit 7'"}}
    places |= {"needed": {**places["lost"], "required": True}}
    places |= {"without": {**places["absent"], "required": True}, "stuck": {**places["hang"], "timeout": "4s"}}
    places["stuck"]["env"] = {"HOW": "hang", "OTHER": "1"}
    recipes = {
        "fat": {**_FAT, "verify": {"on": ["host", "relu", "phone", "absent", "lost"]}},
        "plain": {**_PLAIN, "verify": {"on": ["relu", "lost"]}},
        "nowhere": {**_PLAIN, "verify": {"on": ["absent", "lost"]}},
        "needed": {**_FAT, "verify": {"on": ["needed"]}},
        "without": {**_FAT, "verify": {"on": ["host", "without"]}},
        "stuck": {**_PLAIN, "verify": {"on": ["hang", "stuck"]}},
        "broken": {"specializations": [{"target": "portable"}], "verify": {"on": ["broken"]}},
        **{how: {**_FAT, "verify": {"on": [how]}} for how in _FAILING},
    }
    model = {"source": "nets:relu", "recipes": list(recipes), "limits": {"timeout": 10}}
    (folder / "zoo.yaml").write_text(
        yaml.safe_dump({"version": 1, "places": places, "recipes": recipes, "models": {"net": model}})
    )
    (folder / "device.txt").write_text("Fictional GPU, driver 1")
    return folder, _export(folder)


def _export(folder: Path, *options: str) -> dict:
    done = _run(folder, *options, "--json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def _run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("pteforge"), "export", "zoo.yaml", "--store", "store", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ)


def test_proven(made):
    """Each payload is run on every place that has its backends; for the others the reason is given."""
    fat = made[1]["models"]["net"]["fat"]
    assert fat["proven_on"] == {
        "xnnpack": ["host", "absent", "phone", "relu"],
        "portable": ["host", "absent", "phone", "relu"],
        "mlx": ["relu"],
    }
    of_place = {(proof["place"], proof["payload"]): proof for proof in fat["proofs"]}
    assert of_place["relu", "mlx"]["figures"]["overall"]["cases"] >= 3
    assert of_place["relu", "mlx"]["about"] == "Fictional GPU, driver 1"
    assert of_place["absent", "mlx"]["not_run"] == "needs MLXBackend, which finds no device or driver on this machine"
    assert of_place["phone", "mlx"]["not_run"] == "needs MLXBackend, which the place does not have"
    assert of_place["phone", "xnnpack"]["about"].startswith("ExecuTorch 1.5.1, Linux ")
    assert list(of_place["phone", ""]["figures"]["payloads"]) == ["xnnpack"]  # the whole file, as an app runs it
    assert "no device" in of_place["lost", "mlx"]["not_run"]


def test_plain_files(made):
    """A file that only a place can run is verified by that; one that nothing has run is refused, with all reasons."""
    plain, nowhere = (made[1]["models"]["net"][name] for name in ("plain", "nowhere"))
    assert plain["verified"]
    assert plain["proven_on"] == {"": ["relu"]}
    assert {(proof["place"], proof["payload"]) for proof in plain["proofs"]} == {("relu", ""), ("lost", "")}
    assert nowhere["status"] == "failed"
    for telling in ("nothing has run the file", "this machine's runtime does not have", "on 'absent'", "no device"):
        assert telling in nowhere["problem"]


@pytest.mark.parametrize("how", _FAILING)
def test_places_that_fail(made, how):
    """Wrong values, exceptions, crashes and hangs fail the recipe that asked for them, and nothing else."""
    failed = made[1]["models"]["net"][how]
    assert failed["status"] == "failed"
    assert failed["step"] == f"prove/{how}/{how}.mlx"
    assert _FAILING[how] in failed["problem"]


def test_commands_that_fail(made):
    """So do a command that answers wrongly, and a place that is required and cannot be reached."""
    recipes = made[1]["models"]["net"]
    assert "does not compute what eager computes" in recipes["broken"]["problem"]
    assert "place 'needed' is required, and cannot be reached" in recipes["needed"]["problem"]
    assert "no device" in recipes["needed"]["problem"]
    assert recipes["needed"]["step"] == ""
    assert (
        "place 'without' is required, and cannot run a payload, which needs MLXBackend"
        in (recipes["without"]["problem"])
    )
    stuck = recipes["stuck"]["problem"]
    assert "time limit of 4 s; `timeout` of the place 'stuck'" in stuck
    assert "time limit of 10 s; `timeout` of the place 'hang'" in stuck


def test_where_it_is_shown(made, run_here):
    """`inspect`, the page, `diff` and its gate, and the card of a release say where each payload was run."""
    folder = made[0]
    said = run_here(folder, "inspect", "out/net/fat.pte").out
    assert "mlx: proven on: relu" in said
    page = (folder / "out/index.html").read_text()
    assert "mlx: proven on: relu" in page
    assert "not run on phone: mlx: it needs MLXBackend" in page
    other = folder / "other" / "net"
    other.mkdir(parents=True, exist_ok=True)
    provenance = json.loads((folder / "out/net/fat.json").read_text())
    provenance["findings"]["proofs"] = []
    for name, content in (("fat.json", json.dumps(provenance).encode()), ("fat.pte", None)):
        (other / name).write_bytes(content or (folder / "out/net" / name).read_bytes())
    said = run_here(folder, "diff", "out/net/fat.pte", "other/net/fat.pte", "--fail-on", "proven")
    assert said.code == 1
    assert "mlx: proven on" in said.out
    assert "nothing has run payload mlx: it needs MLXBackend" in said.out + said.err
    assert "was run on absent, phone, relu, and is not any more" in said.out + said.err


def test_other_device(made):
    """What a place says of itself is part of the key: with another driver, its proofs run again, and no others."""
    folder, _ = made
    again = _export(folder, "--recipe", "fat")
    assert again["stages"]["ran"] == 0
    (folder / "device.txt").write_text("Fictional GPU, driver 2")
    again = _export(folder, "--recipe", "fat")
    assert again["stages"]["ran"] == 4  # a payload each, and the report
    assert {proof["about"] for proof in again["models"]["net"]["fat"]["proofs"] if proof["place"] == "relu"} == {
        "Fictional GPU, driver 2"
    }


def test_verify(made, run_here):
    """`pteforge verify --place` runs a file that is there on a place."""
    said = run_here(made[0], "verify", "--store", "store", "out/net/fat.pte", "--place", "command:./on-phone")
    assert said.code == 0
    assert "xnnpack: verified on" in said.out
    said = run_here(made[0], "verify", "--store", "store", "out/net/fat.pte", "--place", "tpu:x")
    said.refused("'tpu:x' is no place")


def test_places_of_the_command_line(made):
    """One that is named is required: a missing driver or library ends with an error that says where it was named."""
    folder = made[0]
    missing = _run(folder, "--recipe", "fat", "--place", "library:none.so")
    assert missing.returncode == 2
    assert missing.stderr.startswith(f"error: --place: none: there is no library {folder}/none.so")
    lost = _run(folder, "--recipe", "plain", "--place", "lost")
    assert lost.returncode == 1
    assert "net: place 'lost' is required, and cannot be reached" in lost.stderr
    (row,) = [line for line in lost.stdout.splitlines() if line.startswith(" net ")]
    assert row.split()[:3] == ["net", "plain", "failed"]
    assert "failed at" not in row


def test_words_and_figures(made):
    """They are those of what was run: where a place ran it, and none of an edge program in place of a payload's."""
    folder = made[0]
    ran = _run(folder, "--recipe", "plain").stdout
    assert "net/plain: the file was run on relu; not on this machine, since it needs MLXBackend" in ran
    not_run = _run(folder, "--recipe", "nowhere", "--set", "recipes.nowhere.verify.required=false").stdout
    (row,) = [line for line in not_run.splitlines() if line.startswith(" net")]
    assert row.split()[:5] == ["net", "nowhere", "made,", "not", "run"]
    assert "dB" not in row
    assert "exact" not in row
    assert "its edge program ran instead: exact" in not_run


def test_failed_proofs_of_earlier_files(made):
    """A file that a place finds wrong is not left where an earlier run put it as verified."""
    folder, recipe = made[0], ("--recipe", "plain", "--out", "proven")
    assert _run(folder, *recipe).returncode == 0
    wrong = _run(folder, *recipe, "--place", "zeros")
    assert wrong.returncode == 1
    assert "the file is kept as" in wrong.stderr
    assert sorted(path.name for path in (folder / "proven" / "net").iterdir()) == ["plain.rejected.pte"]
    assert _run(folder, *recipe).returncode == 0
    assert sorted(path.name for path in (folder / "proven" / "net").iterdir()) == ["plain.json", "plain.pte"]
