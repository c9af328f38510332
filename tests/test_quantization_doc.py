"""docs/quantization.md shows what there is: every recipe type of upstream, every quantizer, and YAML that loads."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pteforge
import pytest
from pteforge.configs import load_zoo, preset_names
from pteforge.tasks.targets import target_names
from pteforge.tasks.targets.find import find_target_class

TEXT = (Path(pteforge.__file__).parent / "docs" / "quantization.md").read_text(encoding="utf-8")
ROWS = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if line[:3] == "| `"]


def recipe_types(file: str) -> list[str]:
    """Members of the one enum in a module of ExecuTorch, read without importing it."""
    root = importlib.util.find_spec("executorch").submodule_search_locations[0]
    (found,) = [each for each in ast.parse(Path(root, file).read_text()).body if isinstance(each, ast.ClassDef)]
    return [each.targets[0].id for each in found.body if isinstance(each, ast.Assign)]


@pytest.mark.parametrize(
    ("target", "file"),
    [
        ("xnnpack", "backends/xnnpack/recipes/xnnpack_recipe_types.py"),
        ("coreml", "backends/apple/coreml/recipes/coreml_recipe_types.py"),
    ],
)
def test_every_recipe_type_has_a_recipe(target, file):
    """Each of upstream's recipe types for a backend stands in the table with a shipped recipe, and no others do."""
    listed = {kind.partition(".")[2] or kind: name for kind, name, *_ in ROWS if name.startswith(f"{target}-")}
    assert sorted(listed) == sorted(recipe_types(file))
    assert sorted(listed.values()) == [name for name in preset_names() if name.startswith(f"{target}-")]


def test_every_quantizer_is_listed():
    """Targets with a quantizer stand in the table with all of its options."""
    listed = {name: cell for names, cell, *_ in ROWS for name in re.findall(r"\w+", names) if name in target_names()}
    having = {name: find_target_class(name).QuantizerOptions for name in target_names()}
    assert {name: set(re.findall(r"\w+", cell)) for name, cell in listed.items()} == {
        name: set(options.model_fields) for name, options in having.items() if options
    }


def test_examples_load(tmp_path: Path):
    """What it shows of zoo files is valid."""
    recipes, models = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "zoo.yaml").write_text(f"version: 1\n{recipes}{models}    recipes: [mixed-int8]\n", encoding="utf-8")
    zoo = load_zoo(tmp_path / "zoo.yaml").zoo
    assert [each.options for each in zoo.recipes["mixed-int8"].quantize.chosen] == [{"dynamic": True}, {}]
    assert zoo.models["segmenter"].calibration["forward"].samples == 256
