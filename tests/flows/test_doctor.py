"""Diagnoses: of an export that fails, in all that a run leaves behind, and by `pteforge doctor`."""

from __future__ import annotations

import pytest
from pteforge.flows.cli.progress import Failures, print_failures
from pteforge.flows.prefect.pages import _diagnosis
from pteforge.flows.reports.page import NAME
from pteforge.flows.run.examine import examine
from pteforge.tasks.engine.executor import Executor
from pteforge.tasks.results.diagnosis import Diagnosis
from pteforge.tests.flows.conftest import open_run

BATCH = {"forward": [{0: {"min": 1, "max": 8, "name": "rows"}}]}
MODELS = {
    "branches": "refused:branches",
    "rows": {"source": "refused:rows", "dynamic_shapes": BATCH},
    "fourier": "refused:fourier",
    "raises": "faulty:raises",
    "unfit": "faulty:wrong_shape",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory, make_project, lower):
    """A project of models that cannot be lowered, after its first run."""
    project = make_project(tmp_path_factory.mktemp("refused") / "project")
    project.write_zoo(MODELS, ("portable-fp32",))
    return project, lower(project)


@pytest.fixture
def doctor(workers):
    """Diagnoses a project's models, with the shared workers."""

    def run(project, models="*"):
        with open_run(project, workers, models=models) as session:
            return {found.model: found for found in examine(session)}

    return run


def failures(run):
    return {made.model: made.failure for made in run.outcome.recipes}


def test_failures_have_findings(refused):
    """The error stays that of `export`; the findings name line, cause and ways out. Known causes have them, too."""
    found = failures(refused[1])
    branches, rows, fourier = (found[name] for name in ("branches", "rows", "fourier"))
    assert branches.step == "export"
    assert "GuardOnDataDependentSymNode" in branches.problem
    assert [finding.code for finding in branches.findings] == ["if x.sum() > 0:"]
    assert branches.findings[0].where.startswith("refused.py:")
    assert rows.bad_input
    assert "leave 'rows' out of the dynamic shapes: it is always 2" in rows.findings[0].remedies
    assert fourier.step == "edge/forward/portable-fp32"
    assert "complex" in fourier.findings[0].problem


def test_only_what_is_worth_it_is_diagnosed(refused):
    """Where the builder fails, the inputs do not fit or a later stage fails, `diagnose` does not run."""
    diagnosed = {model for model in MODELS if "diagnose" in refused[1].ran(model)}
    assert diagnosed == {"branches", "rows"}
    found = failures(refused[1])
    assert found["raises"].findings == found["unfit"].findings == ()


def test_what_a_run_leaves_behind(refused, capsys):
    """Terminal, page, JSON and Prefect's page have the findings; the log is then on the page only."""
    project, run = refused
    print_failures(run.outcome, Failures(project.out / NAME))
    said = capsys.readouterr().err
    page = (project.out / NAME).read_text(encoding="utf-8")
    entry = run.outcome.to_json()["models"]["branches"]["portable-fp32"]
    prefect = "\n".join(_diagnosis("branches", {"export": failures(run)["branches"]}))
    for text in (said, page, str(entry["findings"]), prefect):
        assert "torch.cond" in text
        assert "refused.py" in text
    assert "TORCH_LOGS" in page
    assert "TORCH_LOGS" not in said


def test_it_runs_once(refused, tmp_path, lower):
    """The next run exports again, and finds the diagnosis, until the model's code is another."""
    made = refused[0].copy(tmp_path / "copy")
    again = lower(made, models="branches")
    assert again.ran("branches") == set()
    assert failures(again)["branches"].findings == failures(refused[1])["branches"].findings
    made.edit("refused.py", "return x - 1", "return x - 2")
    assert lower(made, models="branches").ran("branches") == {"diagnose"}
    made.edit("refused.py", "if x.sum() > 0:", "if x.dim() > 0:")
    assert "diagnose" not in lower(made, models="branches").ran("branches")


def test_a_failed_diagnosis_hides_nothing(refused, tmp_path, lower, monkeypatch):
    """Where the diagnosis itself fails, the error of `export` is reported as before."""
    made = refused[0].copy(tmp_path / "copy")
    made.edit("refused.py", "        if x.sum() > 0:", "        x = x * 1\n        if x.sum() > 0:")

    async def broken(*_):
        raise RuntimeError("no diagnosis")

    monkeypatch.setattr("pteforge.tasks.lowering.graph.diagnose", broken)
    found = failures(lower(made, models="branches"))["branches"]
    assert (found.step, found.bad_input) == ("export", False)
    assert "GuardOnDataDependentSymNode" in found.problem
    assert [finding.kind for finding in found.findings] == ["known cause"]  # from the table, without a line


def test_doctor(refused, doctor, tmp_path):
    """It diagnoses each model, says of those that cannot be built why, and runs only what is not cached."""
    made = refused[0].copy(tmp_path / "copy")
    made.write_zoo({**MODELS, "arrays": "refused:arrays", "linear": "nets:linear"}, ("portable-fp32",))
    found = doctor(made)
    assert {name for name, model in found.items() if model.well} == {"linear", "fourier"}
    assert [attempt.exported for attempt in found["arrays"].methods["forward"].attempts] == [False, True]
    assert "no such width" in found["raises"].methods[""].problem
    assert isinstance(found["branches"].methods["forward"], Diagnosis)
    made.write_zoo({name: made_of for name, made_of in MODELS.items() if name in ("branches", "rows")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "run", None)
        assert doctor(made) == {name: found[name] for name in ("branches", "rows")}


@pytest.mark.slow
def test_command(refused, tmp_path):
    """Exit code, table and JSON of the command; a model that is well has exit code 0."""
    made = refused[0].copy(tmp_path / "copy")
    ill = made.run("doctor", "zoo.yaml", "--model", "branches")
    assert ill.code == 1, ill.err
    assert "torch.cond" in ill.out
    assert "1 method of 1 model: 1 not well" in ill.out
    said = made.run("doctor", "zoo.yaml", "--model", "branches,fourier", "--json")
    assert said.code == 1
    assert {name: model["well"] for name, model in said.json["models"].items()} == {"branches": False, "fourier": True}
    assert said.json["models"]["branches"]["methods"]["forward"]["findings"][0]["code"] == "if x.sum() > 0:"
    well = made.run("doctor", "nets:linear")
    assert (well.code, "all well" in well.out) == (0, True)
    assert made.run("doctor", "zoo.yaml", "--model", "nothing").code == 2
    refusal = made.run("doctor", "zoo.yaml", "--probe")
    assert (refusal.code, "give it with --toolchain" in refusal.err) == (2, True)
