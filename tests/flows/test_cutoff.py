"""What runs again after an edit: what depends on what the edit means, and nothing else; `why` names it."""

from __future__ import annotations

import json
import shutil

import pytest
from pteforge.flows.cli.main import app
from typer.testing import CliRunner

pytestmark = pytest.mark.timeout(600)

PORTABLE = {f"{stage}/portable-fp32" for stage in ("edge/forward", "compile", "serialize", "verify", "report")}
XNNPACK = {
    f"{stage}/xnnpack-fp32"
    for stage in ("edge/forward", "partition/forward", "preprocess", "compile", "serialize", "verify", "report")
}
ALL = {"export"} | PORTABLE | XNNPACK
REPORTS = {"report/portable-fp32", "report/xnnpack-fp32"}
BATCH = {"forward": [{0: {"min": 1, "max": 4}}]}


@pytest.fixture(scope="session")
def lowered(tmp_path_factory, make_room, lower):
    """A room after its first run; tests take copies of it, in other folders."""
    room = make_room(tmp_path_factory.mktemp("cutoff") / "room")
    room.zoo(
        {
            "net": {"source": {"builder": "nets:linear", "kwargs": {"width": 8}}, "dynamic_shapes": BATCH},
            "late": {"source": {"builder": "lazily:plugin", "kwargs": {"name": "small"}}, "recipes": ["portable-fp32"]},
        }
    )
    run = lower(room)
    assert run.outcome.exit_code == 0
    return room


@pytest.fixture
def made(lowered, tmp_path):
    """A copy of that room."""
    return lowered.copy(tmp_path / "copy")


def why(room, name):
    """What `pteforge why --json` says: fields that had changed, by the step that ran."""
    result = CliRunner().invoke(app, ["why", name, "--json", "--store", str(room.store)])
    assert result.exit_code == 0, result.output
    stages = json.loads(result.stdout)["stages"]
    return {
        stage["slot"].partition("/")[2]: {change["field"] for change in stage["differs"]}
        for stage in stages
        if stage["status"] == "ran"
    }


def test_moving_everything_runs_nothing(made, lower):
    """The same zoo in another folder is the same work: no path of a machine enters a key."""
    run = lower(made)
    assert run.outcome.exit_code == 0
    assert run.ran("net") == run.ran("late") == set()
    assert why(made, "net/xnnpack-fp32") == {}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import torch\n\n", "import torch\n\n# a comment\n"),
        ('"""Two linear layers."""', '"""Another docstring."""'),
        ("return self.second(torch.relu(self.first(x)))", "return (self.second(\n  torch.relu( self.first(x) )))"),
    ],
    ids=["comment", "docstring", "layout"],
)
def test_what_means_the_same_runs_nothing(made, lower, before, after):
    """A comment, a docstring or the layout of the builder's file is nobody's business: not even export runs."""
    made.edit("nets.py", before, after)
    assert lower(made).ran("net") == set()


def test_another_way_to_say_the_same_runs_export_only(made, lower):
    """Code that gives the same program by other words runs export, and the reports that name its key, nothing more."""
    made.edit("nets.py", "kind = getattr(torch, dtype)", "kind = vars(torch)[dtype]")
    run = lower(made)
    assert run.ran("net") == {"export"} | REPORTS
    assert why(made, "net")["export"] == {"params.source.modules.nets"}


def test_moving_the_builder_runs_export_only(made, lower):
    """A builder that is moved to another module, and the zoo with it, runs export and nothing that lowers."""
    (made.folder / "lib").mkdir()
    shutil.move(made.folder / "nets.py", made.folder / "lib" / "networks.py")
    run = lower(made, "models.net.source.builder=lib.networks:linear")
    assert run.ran("net") == {"export"} | REPORTS
    assert "params.source.builder" in why(made, "net/portable-fp32")["export"]


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("models.net.seed=1", "params.seed"),
        ("models.net.source.kwargs.width=6", "params.source.kwargs.width"),
        ("models.net.dynamic_shapes.forward=[{0: {min: 1, max: 8}}]", "params.dynamic_shapes.forward"),
    ],
    ids=["weights", "sizes", "bound"],
)
def test_what_changes_the_program_runs_everything(made, lower, override, field):
    """Other weights, sizes or bounds run all stages of the model, and `why` names the field."""
    run = lower(made, override, models="net")
    assert run.outcome.exit_code == 0, run.outcome.failures
    assert run.ran("net") == ALL
    assert field in why(made, "net")["export"]
    assert why(made, "net")["edge/forward/portable-fp32"] == {"inputs.program"}


def test_another_dtype_runs_everything_that_differs(made, lower):
    """Another dtype runs all stages. XNNPACK takes nothing of float64: its file is the portable one, verified once."""
    run = lower(made, "models.net.source.kwargs.dtype=float64", models="net")
    assert run.outcome.exit_code == 0, run.outcome.failures
    assert run.ran("net") == ALL - {"verify/xnnpack-fp32"}
    assert "params.source.kwargs.dtype" in why(made, "net")["export"]
    assert made.files()["net/portable-fp32.pte"] == made.files()["net/xnnpack-fp32.pte"]


def test_another_operator_runs_everything(made, lower):
    """One operator of one model is changed: everything of that model runs, and of no other."""
    made.edit("nets.py", "torch.relu", "torch.tanh")
    run = lower(made)
    assert run.ran("net") == ALL
    assert run.ran("late") == set()


def test_option_of_a_target_runs_its_chain_only(made, lower):
    """An option that decides what XNNPACK takes runs its chain, one that only groups it spares the edge program."""
    made.edit("zoo.yaml", "models:", "recipes: {xnnpack-fp32: {specializations: [{target: xnnpack}]}}\nmodels:")
    assert lower(made).ran("net") == set()
    option = "recipes.xnnpack-fp32.specializations=[{target: xnnpack, options: {%s}}]"
    run = lower(made, option % "per_operator: true", models="net")
    assert run.ran("net") == XNNPACK - {"edge/forward/xnnpack-fp32"}
    changed = why(made, "net/xnnpack-fp32")
    assert changed["partition/forward/xnnpack-fp32"] == {"params.target.options.per_operator"}
    run = lower(made, option % "precisions: [fp32]", models="net")
    assert "edge/forward/xnnpack-fp32" in run.ran("net") <= XNNPACK
    changed = why(made, "net/xnnpack-fp32")
    assert changed["edge/forward/xnnpack-fp32"] == {"params.preserve_for.options.precisions"}


def test_layout_option_runs_the_end_of_the_chain(made, lower):
    """Another alignment is a matter of compile: programs are not lowered again."""
    run = lower(made, "recipes.portable-fp32.compile.segment_alignment=4096", models="net")
    assert run.ran("net") == PORTABLE - {"edge/forward/portable-fp32"}
    assert why(made, "net")["compile/portable-fp32"] == {"params.options.segment_alignment"}


def test_bounds_run_verify_only(made, lower):
    """Other verification bounds verify again, and make nothing again."""
    before = made.files()["net/portable-fp32.pte"]
    run = lower(made, "models.net.verify={min_sqnr_db: 100}", models="net")
    assert run.ran("net") == {
        f"{stage}/{recipe}-fp32" for stage in ("verify", "report") for recipe in ("portable", "xnnpack")
    }
    assert made.files()["net/portable-fp32.pte"] == before
    assert why(made, "net/portable-fp32")["verify/portable-fp32"] == {"params.bounds.min_sqnr_db"}


def test_why_tells_what_was_new_and_what_was_lost(made, lower):
    """A stage that ran for the first time is said to be new, one whose result is gone is said to have lost it."""
    lower(made, "models.net.recipes=[portable-fp32, mine]", "recipes.mine={specializations: [{target: xnnpack}]}")
    result = CliRunner().invoke(app, ["why", "net/mine", "--store", str(made.store)])
    lines = {line.split()[1]: line for line in result.stdout.splitlines()[1:]}
    assert lines["export"].startswith("cached")
    assert lines["report/mine"].endswith("had not run before")
    for record in (made.store / "ledger" / "stages").glob("*/*"):
        record.unlink()
    lower(made)
    result = CliRunner().invoke(app, ["why", "late", "--store", str(made.store)])
    assert len(result.stdout.splitlines()) == 7
    assert all("not in the store any more" in line for line in result.stdout.splitlines()[1:])


def test_module_loaded_at_run_time_is_watched(made, lower):
    """A module that only running the builder tells of counts like one that its source names."""
    made.edit("plugin_small.py", '"""A small layer."""', "# just a comment")
    assert lower(made).ran("late") == set()
    made.edit("plugin_small.py", "Linear(4, 2)", "Linear(4, 2, bias=False)")
    run = lower(made)
    assert run.ran("late") == {"export"} | PORTABLE
    assert run.ran("net") == set()
    assert why(made, "late")["export"] == {"params.source.modules.plugin_small"}
    assert lower(made).ran("late") == set()
