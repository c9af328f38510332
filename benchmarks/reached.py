"""What int8 recipes reach of the models of breadth.py: share of the weights that are integers, and bytes of the files.

    python benchmarks/reached.py [--only NAME,...] [--recipes RECIPE,...] [--before FILE] [--save FILE]

Models are those of breadth.py, and three with recurrent layers. `--save` writes the figures to a file,
and `--before` shows those of another version of pteforge next to this one's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from breadth import sources
from measuring import exporting, markdown, temporary_folder, write_zoo

DEFAULT = "bert,convbert,gpt2,t5,mamba,convnext,regnet,whisper,wav2vec2,speech_to_text"
RECIPES = "xnnpack-fp32,xnnpack-int8-dynamic,xnnpack-int8-static"
KINDS = {"lstm": {"kind": "LSTM"}, "gru": {"kind": "GRU"}, "keywords": {"kind": "LSTM", "convolution": True}}

Figures = dict[str, dict[str, dict[str, Any]]]
"""By model and recipe: `share` of weights, `size` in bytes, `problem` instead of a size."""


def measure(names: list[str], recipes: list[str], folder: Path) -> Figures:
    """Lowers the models with the recipes."""
    models: dict[str, Any] = {
        name: {"builder": "networks:recurrent", "kwargs": kwargs} for name, kwargs in KINDS.items()
    }
    models |= {name: source for _, name, source in sources("*", "xnnpack-fp32") if name in names}
    zoo = write_zoo(folder, {name: {"source": models[name], "recipes": recipes} for name in names})
    done = subprocess.run([*exporting(zoo, folder), "--json"], cwd=folder, stdout=subprocess.PIPE, check=False)
    return {
        model: {recipe: _figures(outcome) for recipe, outcome in by_recipe.items()}
        for model, by_recipe in json.loads(done.stdout)["models"].items()
    }


def _figures(outcome: dict[str, Any]) -> dict[str, Any]:
    if not outcome.get("file"):
        return {"problem": outcome["problem"].partition("\n")[0]}
    reached = outcome["quantization"].values()
    elements = sum(method["elements"] for method in reached)
    share = sum(method["quantized"] for method in reached) / elements if elements else 0
    return {"share": share, "size": outcome["size"]}


def table(figures: Figures, before: Figures) -> str:
    """A row for each model: share and size relative to fp32's file, by recipe; those before to the left of an arrow."""
    recipes = [recipe for recipe in next(iter(figures.values())) if recipe != "xnnpack-fp32"]
    rows = [["model", "fp32, bytes", *(f"{name}: {what}" for name in recipes for what in ("share", "size / fp32"))]]
    for model, of_model in figures.items():
        plain = of_model["xnnpack-fp32"].get("size")
        cells = [model, f"{plain:,}" if plain else "failed"]
        for recipe in recipes:
            of_recipe = [side[model][recipe] for side in (before, figures) if recipe in side.get(model, {})]
            cells.append(" → ".join(f"{made['share']:.0%}" if "share" in made else "failed" for made in of_recipe))
            sizes = [f"{made['size'] / plain:.2f}" if plain and "size" in made else "-" for made in of_recipe]
            cells.append(" → ".join(sizes))
        rows.append(cells)
    return markdown(rows)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join((*KINDS, DEFAULT)))
    parser.add_argument("--recipes", default=RECIPES)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    with temporary_folder() as folder:
        figures = measure(options.only.split(","), options.recipes.split(","), folder)
    if options.save:
        options.save.write_text(json.dumps(figures), encoding="utf-8")
    print(table(figures, json.loads(options.before.read_text(encoding="utf-8")) if options.before else {}))


if __name__ == "__main__":
    main()
