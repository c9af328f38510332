"""Plain files with their weights in a `.ptd` beside them: made, kept, verified again, run, and taken away again."""

from __future__ import annotations

import hashlib
import json

import pytest

pytestmark = pytest.mark.timeout(600)

GATE = {"evaluator": "scoring:finite", "floor": 0.5}


def recipes(*, external_data=True):
    """A plain recipe for kernels, and one for XNNPACK; the ladder and a gate run what they make, too."""
    return {
        target: {
            "output": {"external_data": external_data},
            "specializations": [{"target": target}],
            "verify": {"ladder": True},
            "accuracy": GATE,
        }
        for target in ("portable", "xnnpack")
    }


@pytest.fixture(scope="module")
def lowered(lower_room):
    """A room in which both were made, and that run; tests take copies of the room."""
    return lower_room({"net": "nets:linear"}, ("portable", "xnnpack"), recipes())


@pytest.fixture
def made(lowered, tmp_path):
    """A copy of that room."""
    return lowered[0].copy(tmp_path / "copy")


def test_what_is_told(lowered):
    """The outcome has both files and the size of both, provenance the digest and size of the `.ptd`."""
    room, run = lowered
    (model,) = run.outcome.models
    for recipe in model.recipes:
        data = recipe.path.with_suffix(".ptd")
        assert recipe.data == data
        assert recipe.size == recipe.path.stat().st_size + data.stat().st_size
        told = json.loads(recipe.path.with_suffix(".json").read_text())["data"]
        assert told == {"sha256": hashlib.sha256(data.read_bytes()).hexdigest(), "size": data.stat().st_size}
        assert [(rung.label, rung.problem) for rung in recipe.ladder.rungs][-1] == ("payload", "")
        assert recipe.accuracy.worst == 1.0
    written = run.outcome.to_json()["models"]["net"]
    assert written["xnnpack"]["data"] == str(room.out / "net" / "xnnpack.ptd")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["portable", "xnnpack"])
def test_verify(target, made):
    """Verifying again takes the `.ptd` beside the file, and says what is wrong with another one; so does `run`.

    One that is named is taken, if its weights have the names and sizes that the file looks for.
    """
    file, beside = f"out/net/{target}.pte", made.out / "net" / f"{target}.ptd"
    done = made.run("verify", file, "--json")
    assert done.code == 0, done.err
    changed = bytearray(beside.read_bytes())
    changed[-1] ^= 1
    beside.write_bytes(changed)
    for command in ("verify", "run"):
        refused = made.run(command, file)
        assert refused.code == 2
        told = f"{target}.ptd is not the one that was made with {file}: its SHA-256 is"
        assert told in refused.err.replace("\n", " ")
    assert made.run("run", file, "--data", str(beside)).code == 0
    beside.unlink()
    refused = made.run("verify", file)
    assert refused.code == 2
    assert f"{target}.ptd, which has the weights of {file}, cannot be read" in refused.err.replace("\n", " ")


def test_weights_go_back_inside(made, lower):
    """A second run does nothing, one after the `.ptd` was lost writes it anew; without the option it is taken away."""
    beside = made.out / "net" / "portable.ptd"
    content = beside.read_bytes()
    beside.unlink()
    assert lower(made).ran("net") == set()
    assert beside.read_bytes() == content
    made.zoo({"net": "nets:linear"}, ("portable", "xnnpack"), recipes(external_data=False))
    ran = lower(made).ran("net")
    assert not beside.exists()
    anew = {"compile", "ladder", "serialize", "verify", "evaluate", "report"}
    assert {name.partition("/")[0] for name in ran} == anew
