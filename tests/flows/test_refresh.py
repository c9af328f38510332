"""`--refresh`: what is cached runs again, each stage once, and the same files come out."""

from __future__ import annotations

import pytest
from pteforge.flows.prefect.settings import refresh_configured

ASKED = "asked for with --refresh"


@pytest.fixture(scope="module")
def lowered(lower_project):
    return lower_project({"net": "nets:linear", "twin": "nets:linear"}, ("portable-fp32",))


def test_every_stage_runs_again_once(made, lower, pteforge):
    """Every stage runs again, once for both models that share it; files stay the same, and `why` has the reason."""
    before = made.files()
    run = lower(made, refresh="this run")
    assert run.outcome.exit_code == 0
    steps = {"export", *(f"{stage}/portable-fp32" for stage in ("compile", "serialize", "verify", "report"))}
    assert run.ran("net") == run.ran("twin") == steps | {"edge/forward/portable-fp32"}
    assert {stage.message for stages in run.stages.values() for stage in stages} == {ASKED}
    times = [
        {stage.key: stage.seconds for stage in stages if stage.stage != "report"} for stages in run.stages.values()
    ]
    assert times[0] == times[1]  # one execution, not two; reports name the model
    assert made.files() == before
    lines = pteforge(made, "why", "net").out.splitlines()
    assert len(lines) == 7
    assert all(line.endswith(ASKED) for line in lines[1:])

    assert lower(made, refresh="this run").ran("net") == set()  # whoever works for the same run finds what it made
    assert lower(made).ran("net") == set()


def test_what_is_asked_for_and_nothing_else(made, lower):
    """Only the selected models' stages run again; where code changed, too, the reason is the change."""
    made.edit("nets.py", "def conv", "EDITED = 1\n\n\ndef conv")
    run = lower(made, models="net", refresh="another run")
    assert set(run.stages) == {"net"}
    assert run.changes("net", "export") == {"params.source.modules.nets"}
    assert {stage.message for stage in run.stages["net"] if stage.step not in ("export", "report/portable-fp32")} == {
        ASKED
    }


def test_plan(made, pteforge):
    """The plan of such a run has every stage with its reason, and says that there is something to do."""
    plan = pteforge(made, "export", "zoo.yaml", "--dry-run", "--refresh", "--model", "net")
    assert plan.code == 3
    assert plan.out.count(ASKED) == 6
    assert plan.out.endswith("0 stages cached, 6 will run, 0 may run\n")


@pytest.mark.slow
def test_prefects_setting(made):
    """With Prefect's own setting the command line does the same, and it is recorded as what was asked for."""
    done = made.export("--until", "edge", env={"PREFECT_TASKS_REFRESH_CACHE": "true"})
    assert done.code == 0, done.err
    # two stages, which both models share
    assert done.out.splitlines()[-1].startswith("2 models: stages up to edge done; 4 stages run, 0 cached")
    assert "net: stages up to edge done (2 stages run, 0 cached)" in done.err
    (known,) = made.run("runs", "--json", "--limit", "1").json["runs"]
    assert known["parameters"]["refresh"] is True


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".env", "PREFECT_TASKS_REFRESH_CACHE=1\n"),
        ("prefect.toml", "[tasks]\nrefresh_cache = true\n"),
        ("pyproject.toml", "[tool.prefect.tasks]\nrefresh_cache = true\n"),
        ("home/profiles.toml", 'active = "mine"\n[profiles.mine]\nPREFECT_TASKS_REFRESH_CACHE = "true"\n'),
    ],
)
def test_places_of_the_setting(tmp_path, monkeypatch, file, text):
    """The setting is found wherever Prefect reads its settings, and a variable of the environment is stronger."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    assert not refresh_configured()
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert refresh_configured()
    monkeypatch.setenv("PREFECT_TASKS_REFRESH_CACHE", "false")
    assert not refresh_configured()
