"""Source transforms in whole runs: checked before any work, in keys with all the code that they load."""

from __future__ import annotations

import pytest
from pteforge.configs.load import load_zoo
from pteforge.errors import ConfigError
from pteforge.flows.select import select_models

PORTABLE = {"specializations": [{"target": "portable"}], "verify": {"min_sqnr_db": None}}


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ({"torchao": "int8_weight_onl"}, r"source_transforms\[0\]: .*did you mean 'int8_weight_only'"),
        ({"torchao": "int8_weight_only", "params": {"bits": 4}}, r"source_transforms\[0\]: .*has no field 'bits'"),
        ({"callable": "nets:nothing"}, r"source_transforms\[0\]: .*nets.py binds no 'nothing'"),
        ({"callable": "nets:linear", "files": ["gone.txt"]}, r"source_transforms\[0\].files\[0\]: there is no file"),
    ],
)
def test_mistakes_are_told_before_any_work(room, transform, message):
    """Unknown configs, fields, functions and files are errors with their place in the file."""
    room.zoo({"net": "nets:linear"}, ("mine",), {"mine": PORTABLE | {"source_transforms": [transform]}})
    with pytest.raises(ConfigError, match=rf"zoo.yaml:\d+:\d+: recipes.mine.{message}"):
        select_models(load_zoo(room.folder / "zoo.yaml"))


@pytest.mark.slow
def test_code_that_a_transform_loads_unseen(room, lower):
    """A module that a callable loads by a computed name is watched: nothing runs again until it changes."""
    (room.folder / "changing.py").write_text(
        "import importlib\n\ndef change(module):\n    importlib.import_module('hidden' + '_change').change(module)\n"
    )
    (room.folder / "hidden_change.py").write_text("def change(module):\n    module.first.weight.data.mul_(2)\n")
    recipe = PORTABLE | {"source_transforms": [{"callable": "changing:change"}]}
    room.zoo({"net": "nets:linear"}, ("mine",), {"mine": recipe})
    first = lower(room)
    assert first.outcome.exit_code == 0, first.outcome.failures
    assert lower(room).ran("net") == set()
    room.edit("hidden_change.py", "mul_(2)", "mul_(3)")
    assert "export" not in (edited := lower(room).ran("net"))
    assert {"source_transform/forward/mine", "edge/forward/mine"} <= edited
