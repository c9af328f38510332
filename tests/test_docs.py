"""What the documents show has to work, too."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pteforge
from pteforge.configs import load_zoo

ROOT = Path(pteforge.__file__).parent
DOCS = ROOT / "docs"
MODELS = "version: 1\ndefaults: {recipes: [portable-fp32]}\nmodels: {net: {source: nets:net}}\n"


def test_recipes_for_methods(tmp_path):
    """The recipes of docs/methods.md load, and mean what the text says."""
    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    recipes = "".join(block.removeprefix("recipes:\n") for block in blocks)
    (tmp_path / "zoo.yaml").write_text(f"{MODELS}recipes:\n{recipes}", encoding="utf-8")
    made = load_zoo(tmp_path / "zoo.yaml").zoo.recipes

    (mixed,) = made["mixed"].specializations
    assert not mixed.methods["decode"].delegate
    assert mixed.methods["embed"].target == "vulkan"
    assert made["chat"].compile.share_mutable_buffers


def test_every_ability_has_a_test():
    """Each row of docs/correspondence.md names what it is called here and a test that exists; no cell is empty."""
    text = (DOCS / "correspondence.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in row] for row in rows if row[0].strip() != "ability"]
    assert len(rows) > 40
    for row in rows:
        assert len(row) == 3, row
        assert all(row), row
        path, _, name = row[2].strip("`").partition("::")
        functions = {
            node.name
            for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef)
        }
        assert name in functions, row[2]
