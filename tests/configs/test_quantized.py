"""The zoo that shows which quantizing recipe applies to which model."""

from __future__ import annotations

from pathlib import Path

from pteforge.configs import load_zoo, preset_names

ZOO = Path(__file__).parents[2] / "examples/zoo"


def test_it_is_the_starter_zoo_with_every_quantizing_recipe():
    """Its models are the starter zoo's, with the same sources, and its recipes are all shipped ones that quantize."""
    quantized, starter = (load_zoo(ZOO / f"{name}.yaml").zoo for name in ("quantized", "starter"))
    sources = {name: model.source for name, model in starter.models.items()}
    assert {name: model.source for name, model in quantized.models.items()} == sources
    quantizing = sorted(name for name in preset_names() if name.startswith("xnnpack-int"))
    assert len(quantizing) == 5
    for model in quantized.models:
        assert sorted(quantized.recipes_of(model)) == quantizing


def test_bounds_are_those_of_the_shipped_recipes():
    """Nothing about the shipped recipes is changed but what they are not for, and no model has bounds of its own."""
    zoo = load_zoo(ZOO / "quantized.yaml").zoo
    for name, recipe in zoo.recipes.items():
        shipped = load_zoo(ZOO / "starter.yaml", [f"defaults.recipes=[{name}]"]).zoo.recipes[name]
        assert recipe.model_copy(update={"not_for": {}}) == shipped
    assert all(model.verify is None for model in zoo.models.values())
    assert sum(bool(zoo.recipes[r].reason_against(m)) for m in zoo.models for r in zoo.recipes_of(m)) == 9
