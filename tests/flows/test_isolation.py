"""One model's failure is its own: the others are made, the summary says what failed, and mending it does the rest."""

from __future__ import annotations

import shutil

import pytest

pytestmark = pytest.mark.timeout(900)

GOOD = {"good": "nets:linear", "fine": "nets:conv"}
BAD = {
    "raises": "faulty:raises",
    "crashes": "faulty:crashes",
    "hangs": {"source": "faulty:hangs", "limits": {"timeout": "5s"}},
    "hoards": {"source": "faulty:hoards", "limits": {"memory": "256MiB"}},
}
PROBLEMS = {
    "raises": "ZeroDivisionError: no such width",
    "crashes": "killed by SIGSEGV",
    "hangs": "killed at its time limit of 5 s",
    "hoards": "killed at its memory bound of 256 MiB",
}
LOGS = {"crashes": "last words", "hangs": "waiting for nothing"}


@pytest.fixture(scope="module")
def broken(tmp_path_factory, make_room, lower):
    """A room after a run of good and bad models, and that run."""
    room = make_room(tmp_path_factory.mktemp("broken") / "room")
    room.zoo({**BAD, **GOOD}, ("portable-fp32",))
    return room, lower(room)


def mend(room):
    """Makes good builders of the bad ones."""
    shutil.copy(room.folder / "nets.py", room.folder / "faulty.py")
    text = "\n\n".join(f"def {name}():\n    return linear(width={width})" for width, name in enumerate(BAD, 5))
    with (room.folder / "faulty.py").open("a") as file:
        file.write(f"\n\n{text}\n")


def test_good_models_are_made(broken):
    """Whatever the others do, good models are made and verified, and nothing is written for the bad ones."""
    room, run = broken
    assert set(room.files()) == {f"{name}/portable-fp32.{ending}" for name in GOOD for ending in ("pte", "json")}
    made = {model.model: {recipe.status for recipe in model.recipes} for model in run.outcome.models}
    assert made == {name: {"made" if name in GOOD else "failed"} for name in (*GOOD, *BAD)}


@pytest.mark.parametrize("name", BAD)
def test_each_failure_is_told(broken, name):
    """The outcome says which step failed and why, with the end of what its process wrote."""
    (model,) = (model for model in broken[1].outcome.models if model.model == name)
    (failure,) = (recipe.failure for recipe in model.recipes)
    assert failure.step == "export"
    assert PROBLEMS[name] in failure.problem
    assert LOGS.get(name, "") in failure.log_tail


def test_mended_models_need_only_their_own_work(broken, lower, tmp_path):
    """After the bad builders were mended, they run; of the good models, nothing runs."""
    room = broken[0].copy(tmp_path / "mended")
    mend(room)
    run = lower(room)
    assert run.outcome.exit_code == 0
    assert all(run.ran(name) == set() for name in GOOD)
    assert all("export" in run.ran(name) for name in BAD)


def test_builder_that_raises_is_found(broken):
    """A failure of the user's own code tells where in it."""
    (failure,) = (f for f in broken[1].outcome.failures if "ZeroDivisionError" in f.problem)
    lines = (broken[0].folder / "faulty.py").read_text().splitlines()
    number = 1 + next(number for number, line in enumerate(lines) if "ZeroDivisionError" in line)
    assert failure.problem.endswith(f"ZeroDivisionError: no such width (faulty.py:{number})")
    assert "about to fail" in failure.log_tail


def test_a_file_that_computes_something_else_is_not_written(room, lower):
    """A file that fails its verification is not published; what it was off by is told, and the exit code is 1."""
    room.zoo({"unfaithful": "faulty:unfaithful"}, ("portable-fp32",))
    run = lower(room)
    assert run.outcome.exit_code == 1
    (failure,) = run.outcome.failures
    assert failure.step == "verify/portable-fp32"
    assert "SQNR" in failure.problem
    assert room.files() == {}


def test_a_failing_recipe_leaves_its_siblings_alone(room, lower):
    """A recipe whose bounds cannot be kept fails alone: the other one of the same model is made."""
    strict = {"extends": "xnnpack-fp32", "verify": {"max_abs_error": 0.0, "min_sqnr_db": 1000.0}}
    room.zoo({"net": "nets:linear"}, ("portable-fp32", "strict"), {"strict": strict})
    run = lower(room)
    assert run.outcome.exit_code == 1
    assert set(room.files()) == {"net/portable-fp32.pte", "net/portable-fp32.json"}


@pytest.mark.slow
def test_command_line_tells_all(room):
    """The command ends with 1; its summary and its log say of each model what became of it and why."""
    room.zoo({**BAD, **GOOD}, ("portable-fp32",))
    done = room.export()
    assert done.code == 1
    rows = {line.split()[0]: line.split()[2] for line in done.out.splitlines() if "portable-fp32" in line}
    assert rows == {**dict.fromkeys(GOOD, "made"), **dict.fromkeys(BAD, "failed")}
    assert "2 files verified in out, 4 failed" in done.out
    for name, problem in PROBLEMS.items():
        assert f"{name} export: " in done.err
        assert problem in done.err
    for log in LOGS.values():
        assert log in done.err
    mend(room)
    again = room.export("--json")
    assert again.code == again.json["exit_code"] == 0
    assert {name: recipes["portable-fp32"]["status"] for name, recipes in again.json["models"].items()} == {
        **dict.fromkeys(GOOD, "cached"),
        **dict.fromkeys(BAD, "made"),
    }
