"""What the documents show has to work, too."""

from __future__ import annotations

import re
from pathlib import Path

import pteforge
from pteforge.configs import load_zoo

DOCS = Path(pteforge.__file__).parent / "docs"
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
