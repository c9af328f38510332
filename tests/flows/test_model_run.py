"""One model's run: what it does when an input it has found goes bad before it is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from pteforge.artifacts.store import open_store
from pteforge.configs.load import load_zoo
from pteforge.flows.model_run import ModelRun
from pteforge.flows.select import select_models
from pteforge.tasks.dataflow import input_refs
from pteforge.tasks.executor import Executor


def flip(path: Path) -> None:
    """One bit of a file is another."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.chmod(0o600)
    path.write_bytes(content)


@pytest.fixture
def spoiled(room, workers):
    """Runs a model whose compile stage finds an object of its input spoiled, as often as is asked for."""
    room.zoo({"net": "nets:linear"}, ("portable-fp32",))

    def run(damage, times):
        (model,) = select_models(load_zoo(room.folder / "zoo.yaml"))
        spoils = []
        with open_store(str(room.store)) as store:
            executor = Executor(store, workers)
            model_run = ModelRun(model, executor)

            def settle(step, inputs):
                refs = input_refs(step, inputs)
                if step.name == "compile/portable-fp32" and len(spoils) < times:
                    spoils.append(store.local.path(store.objects_of(refs["program/forward"])[-1]))
                    damage(spoils[-1])
                return executor.settle(model, step, refs)

            model_run.run(settle, threads=4)
            outcome = model_run.publish(room.out)
        assert len(spoils) == times
        return outcome

    return run


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flip", "delete"])
def test_lost_input_is_made_again_in_the_same_run(room, spoiled, damage):
    """An object that goes bad between its making and its use is made again, and the run ends well."""
    outcome = spoiled(damage, 1)
    assert [recipe.failure for recipe in outcome.recipes] == [None]
    assert set(room.files()) == {"net/portable-fp32.pte", "net/portable-fp32.json"}


def test_a_disk_that_loses_everything_is_given_up(room, spoiled):
    """Where what is made again is lost again, the model fails with a message instead of running for ever."""
    outcome = spoiled(Path.unlink, 3)
    (recipe,) = outcome.recipes
    assert recipe.failure is not None
    assert recipe.failure.step == "compile/portable-fp32"
    assert "has to run again" in recipe.failure.problem
    assert room.files() == {}
