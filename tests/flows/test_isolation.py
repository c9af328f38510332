"""One model's failure stays its own: other models are made, the summary says what failed, and a fix makes the rest."""

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
    "wrong_shape": "faulty:wrong_shape",
    "raising_model": "faulty:raising_model",
}
OF_USERS = {"raises", "wrong_shape", "raising_model"}  # no retry can help
PROBLEMS = {
    "raises": "ZeroDivisionError: no such width",
    "crashes": "killed by SIGSEGV",
    "hangs": "killed at its time limit of 5 s",
    "hoards": "killed at its memory bound of 256 MiB",
    "wrong_shape": "does not take its own example inputs of method 'forward'",
    "raising_model": "no such mode for 2 dimensions",
}
LOGS = {"raises": "about to fail", "crashes": "last words", "hangs": "waiting for nothing"}


@pytest.fixture(scope="module")
def broken(tmp_path_factory, make_project, lower):
    """A project after a run of good and bad models, and that run."""
    project = make_project(tmp_path_factory.mktemp("broken") / "project")
    project.write_zoo({**BAD, **GOOD}, ("portable-fp32",))
    return project, lower(project)


def test_good_models_are_made(broken):
    """Good models are made and verified whatever the others do, and nothing is written for the bad ones."""
    project, run = broken
    assert set(project.files()) == {f"{name}/portable-fp32.{ending}" for name in GOOD for ending in ("pte", "json")}
    made = {model.model: {recipe.status for recipe in model.recipes} for model in run.outcome.models}
    assert made == {name: {"made" if name in GOOD else "failed"} for name in (*GOOD, *BAD)}
    assert run.outcome.exit_code == 1


@pytest.mark.parametrize("name", BAD)
def test_failures_have_a_step_and_a_reason(broken, name):
    """The outcome says which step failed and why, with the end of the process's log and the line of user code."""
    project, run = broken
    (model,) = (model for model in run.outcome.models if model.model == name)
    (failure,) = (recipe.failure for recipe in model.recipes)
    assert (failure.step, failure.bad_input) == ("export", name in OF_USERS)
    assert PROBLEMS[name] in failure.problem
    assert LOGS.get(name, "") in failure.log_tail
    if name == "raises":
        lines = (project.folder / "faulty.py").read_text().splitlines()
        number = 1 + next(number for number, line in enumerate(lines) if "ZeroDivisionError" in line)
        assert failure.problem.endswith(f"(faulty.py:{number})")


def test_fixed_models_need_only_their_own_work(broken, lower, tmp_path):
    """After the bad builders were fixed, they run; no stage of the good models does."""
    project = broken[0].copy(tmp_path / "fixed")
    shutil.copy(project.folder / "nets.py", project.folder / "faulty.py")
    with (project.folder / "faulty.py").open("a") as file:
        for width, name in enumerate(BAD, 5):
            file.write(f"\n\ndef {name}():\n    return linear(width={width})\n")
    run = lower(project)
    assert run.outcome.exit_code == 0
    assert all(run.ran(name) == set() for name in GOOD)
    assert all("export" in run.ran(name) for name in BAD)


def test_a_file_that_computes_something_else_is_not_written(project, lower):
    """A file that fails its verification is not published; the failure has the figures, and the exit code is 1."""
    project.write_zoo({"unfaithful": "faulty:unfaithful"}, ("portable-fp32",))
    run = lower(project)
    assert run.outcome.exit_code == 1
    (failure,) = run.outcome.failures
    assert failure.step == "verify/portable-fp32"
    assert "SQNR" in failure.problem
    assert project.files() == {}


@pytest.mark.slow
def test_command_line(project):
    """The command ends with 1; its summary and its log say what became of each model and why."""
    project.write_zoo({**BAD, **GOOD}, ("portable-fp32",))
    done = project.export()
    assert done.code == 1
    rows = {line.split()[0]: line.split()[2] for line in done.out.splitlines() if "portable-fp32" in line}
    assert rows == {**dict.fromkeys(GOOD, "verified"), **dict.fromkeys(BAD, "failed")}
    last = done.out.splitlines()[-1]
    assert last.startswith("2 files verified in out, 6 failed")
    assert last.endswith("; see out/index.html")
    page = (project.out / "index.html").read_text(encoding="utf-8")
    for name, problem in PROBLEMS.items():
        assert f"{name} export: " in done.err
        assert problem in done.err
        assert LOGS.get(name, "") in done.err + page  # which has all of a long log
