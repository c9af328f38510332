"""Models and methods share equal work, and a change of one reruns no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pteforge.artifacts.store import open_store
from pteforge.configs.load import load_zoo
from pteforge.flows.run.select import select_models
from pteforge.tasks.engine.executor import Executor, LedgerRunner
from pteforge.tasks.engine.keys.source import current_params
from pteforge.tasks.engine.runner import NotCached
from pteforge.tasks.lowering.graph import lower_model
from pteforge.tasks.lowering.runs import ModelRun, run_without_loop


def test_models_of_one_builder_watch_their_own_modules(project, lower):
    """If a builder loads a module for each model, an edit of one of them reruns its own model only."""
    project.write_zoo(
        {name: {"source": {"builder": "lazily:plugin", "kwargs": {"name": name}}} for name in ("small", "large")},
        ("portable-fp32",),
    )
    plugin = (project.folder / "plugin_small.py").read_text()
    project.write("plugin_large.py", plugin.replace("Linear(4, 2)", "Linear(4, 6)"))
    assert lower(project).outcome.exit_code == 0
    again = lower(project)
    assert again.ran("small") == again.ran("large") == set()
    project.edit("plugin_large.py", "Linear(4, 6)", "Linear(4, 5)")
    edited = lower(project)
    assert edited.ran("small") == set()
    assert "export" in edited.ran("large")
    assert edited.changes("large", "export") == {"params.source.modules.plugin_large"}


def test_methods_watch_their_own_modules(project, lower):
    """An edit of a module that only the second method loads, when it is traced, does not rerun the first one."""
    project.write_zoo({"two": "lazily:encode_and_decode"}, ("portable-fp32",))
    first = lower(project)
    assert first.outcome.exit_code == 0, first.outcome.failures
    assert {"export", "export/decode"} <= first.ran("two")
    assert lower(project).ran("two") == set()
    project.edit("plugin_small.py", "Linear(4, 2)", "Linear(4, 2, bias=False)")
    edited = lower(project).ran("two")
    assert "export/decode" in edited
    assert "export" not in edited


def test_models_of_one_builder_are_exported_at_once(project, workers):
    """Modules that one of two equal sources has loaded are no change to the other, exported at the same time."""
    builder = {"builder": "lazily:plugin", "kwargs": {"name": "small"}}
    project.write_zoo({"a": {"source": builder, "seed": 1}, "b": {"source": builder, "seed": 2}}, ("portable-fp32",))
    models = select_models(load_zoo(project.folder / "zoo.yaml"))
    with open_store(str(project.store)) as store:
        executor, calls = Executor(store, workers), []

        class Recording(LedgerRunner):
            async def __call__(self, call):
                calls.append(call)
                return await super().__call__(call)

        def first_export(model):
            with pytest.raises(NotCached):
                run_without_loop(lower_model(ModelRun(Recording(executor), model)))
            return calls.pop(0)

        exports = [first_export(model) for model in models]
        results = [executor.run(call) for call in exports]
        watched = store.ledger.watched(models[1].watch_name(None))
        assert "plugin_small" in watched
        again = replace(exports[1], params=current_params(exports[1], watched))
        found = executor.find(again)
    assert found is not None
    assert found.roles == results[1].roles


@pytest.mark.slow
def test_transforms_watch_their_modules(project, lower):
    """A module that a source transform loads by a computed name is watched: no stage runs again until it changes."""
    load = "importlib.import_module('hidden' + '_change').change(module)"
    project.write("changing.py", f"import importlib\n\ndef change(module):\n    {load}\n")
    project.write("hidden_change.py", "def change(module):\n    module.first.weight.data.mul_(2)\n")
    recipe = {"extends": "portable-fp32", "verify": {"min_sqnr_db": None}}
    transforms = [{"callable": "changing:change"}]
    project.write_zoo({"net": "nets:linear"}, ("mine",), {"mine": recipe | {"source_transforms": transforms}})
    first = lower(project)
    assert first.outcome.exit_code == 0, first.outcome.failures
    assert lower(project).ran("net") == set()
    project.edit("hidden_change.py", "mul_(2)", "mul_(3)")
    edited = lower(project).ran("net")
    assert not {"export", "edge/forward/mine"} & edited  # of the graph, which is as it was
    assert {"source_transform/forward/mine", "compile/mine"} <= edited
