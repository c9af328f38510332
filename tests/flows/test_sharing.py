"""What models, recipes, methods and runs have in common is done once, and none of them gets in another's way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pteforge.artifacts.store import open_store
from pteforge.configs.load import load_zoo
from pteforge.flows.select import select_models
from pteforge.tasks.executor import Executor
from pteforge.tasks.plan import plan_model


def names(stages):
    """Names of steps, with how often they ran."""
    return [stage.slot.partition("/")[2] for stage in stages if stage.status == "ran"]


def test_export_runs_once_for_all_recipes(room, lower):
    """One model with two recipes is exported once."""
    room.zoo({"net": "nets:linear"})
    run = lower(room)
    assert names(run.stages["net"]).count("export") == 1
    assert [stage.recipes for stage in run.stages["net"] if stage.stage == "export"] == [
        ("portable-fp32", "xnnpack-fp32")
    ]


def test_equal_edge_programs_are_made_once(room, lower):
    """Two XNNPACK recipes that differ in how operators are grouped share the edge program; one more recipe does too."""
    grouped = {"specializations": [{"target": "xnnpack"}]}
    single = {"specializations": [{"target": "xnnpack", "options": {"per_operator": True}}]}
    room.zoo({"net": "nets:linear"}, ("grouped", "single"), {"grouped": grouped, "single": single})
    run = lower(room)
    assert run.outcome.exit_code == 0
    ran = names(run.stages["net"])
    assert [name for name in ran if name.startswith("edge/")] == ["edge/forward/grouped"]
    assert {"partition/forward/grouped", "partition/forward/single"} <= set(ran)


def test_models_of_one_builder_watch_their_own_modules(room, lower):
    """A builder that loads one module for one model and another for another: neither makes the other's run again."""
    room.zoo(
        {name: {"source": {"builder": "lazily:plugin", "kwargs": {"name": name}}} for name in ("small", "large")},
        ("portable-fp32",),
    )
    assert lower(room).outcome.exit_code == 0
    again = lower(room)
    assert again.ran("small") == again.ran("large") == set()
    room.edit("plugin_large.py", "Linear(4, 6)", "Linear(4, 5)")
    edited = lower(room)
    assert edited.ran("small") == set()
    assert "export" in edited.ran("large")


def test_methods_watch_their_own_modules(room, lower):
    """A module that only the second method loads, when it is traced, does not make the first one run again."""
    room.zoo({"two": "methods:encode_and_decode"}, ("portable-fp32",))
    first = lower(room)
    assert first.outcome.exit_code == 0, first.outcome.failures
    assert {"export", "export/decode"} <= first.ran("two")
    assert lower(room).ran("two") == set()
    room.edit("plugin_small.py", "Linear(4, 2)", "Linear(4, 2, bias=False)")
    edited = lower(room).ran("two")
    assert "export/decode" in edited
    assert "export" not in edited


def test_models_of_one_builder_are_exported_at_once(room, workers):
    """What one of two equal sources has loaded is no change of the other's that is exported at the same time."""
    builder = {"builder": "lazily:plugin", "kwargs": {"name": "small"}}
    room.zoo({"a": {"source": builder, "seed": 1}, "b": {"source": builder, "seed": 2}}, ("portable-fp32",))
    models = select_models(load_zoo(room.folder / "zoo.yaml"))
    with open_store(str(room.store)) as store:
        executor = Executor(store, workers)
        steps = [plan_model(model, None, store.ledger.watched).steps[0] for model in models]
        results = [executor.settle(model, step, {}) for model, step in zip(models, steps, strict=True)]
        watched = store.ledger.watched(models[1].watch_name(None))
        assert "plugin_small" in watched
        again = plan_model(models[1], None, store.ledger.watched).steps[0]
        found = executor.find(again, {})
    assert found is not None
    assert found.outputs == results[1].outputs


def test_two_runs_share_the_work(room, lower):
    """Of two runs of the same zoo and store at the same time, each stage is run by one and found by the other."""
    room.zoo({"net": "nets:linear"}, ("portable-fp32",))
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lower, [room, room]))
    assert [run.outcome.exit_code for run in runs] == [0, 0]
    assert sorted(name for run in runs for name in names(run.stages["net"])) == sorted(
        [
            "export",
            *(f"{stage}/portable-fp32" for stage in ("edge/forward", "compile", "serialize", "verify", "report")),
        ]
    )
